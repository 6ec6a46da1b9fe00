//! Topics that a client which is not ours has written.

use std::io::Write;
use std::process::{Command, Stdio};

use super::{config, configured, lines, run_in, run_with_input, topic, variable};

#[test]
#[ignore = "needs Kafka"]
fn a_tail_reads_what_kcat_has_compressed_in_each_of_the_four_ways() {
    const COUNT: usize = 500;
    let servers = variable("KAFKA_BOOTSTRAP");
    for codec in ["gzip", "snappy", "lz4", "zstd"] {
        let topic = topic(codec);
        let dir = configured(&config(&servers, &topic));
        // Makes the topic; commands that read make none.
        let ran = run_with_input(dir.path(), &["send", &topic, "-o", "json"], "");
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let tail = ["tail", &topic, "--until", "end", "-o", "json"];
        let mut kcat = Command::new("kcat")
            .args(["-P", "-b", &servers, "-t", &topic, "-p", "1", "-z", codec])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let text: String = (0..COUNT)
            .map(|number| format!("high water {number}\n"))
            .collect();
        let mut input = kcat.stdin.take().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        drop(input);
        assert!(kcat.wait().unwrap().success(), "kcat writes {codec}");
        let ran = run_in(dir.path(), &tail);
        assert_eq!(ran.code, Some(0), "{codec}: {}", ran.stderr);
        let read: String = lines(&ran)
            .iter()
            .map(|line| format!("{}\n", line["value"].as_str().unwrap()))
            .collect();
        assert_eq!(read, text, "{codec}");
    }
}
