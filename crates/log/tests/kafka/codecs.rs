//! Records that another client has compressed.

mod needs_kafka {
    mod needs_kcat {
        use std::io::Write;
        use std::process::{Command, Stdio};

        use tidegate_log::TopicPartition;

        use crate::proxy::{FETCH, Proxy, Rewrite};
        use crate::scene::{config, log, numbers, open, run, topic, variable};

        /// Writes numbers by kcat, compressed, one on each line.
        fn write(codec: &str, at: &TopicPartition, numbers: std::ops::Range<u64>) {
            let mut kcat = Command::new("kcat")
                .args(["-P", "-b", &variable("KAFKA_BOOTSTRAP"), "-z", codec])
                .args(["-t", at.topic.as_str(), "-p", "0"])
                // All of it is in the client's queue before it begins, so that there is something to
                // compress: it sends as it is what does not become smaller.
                .args(["-X", "linger.ms=1000"])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            let lines: Vec<String> = numbers.map(|number| format!("{number}\n")).collect();
            let mut input = kcat.stdin.take().unwrap();
            input.write_all(lines.concat().as_bytes()).unwrap();
            drop(input);
            assert!(kcat.wait().unwrap().success(), "kcat writes {codec}");
        }

        /// Whether an answer brings a batch that is compressed this way. It changes nothing.
        fn is_fetched<const CODEC: u8>(request: i16, _: i16, frame: &mut [u8]) -> bool {
            /// The head of a batch: its first offset, its length, the epoch of its leader, the version
            /// of its form, its checksum, and two bytes. The last bits of these two name the codec.
            const HEAD: usize = 8 + 4 + 4 + 1 + 4 + 2;
            let is_batch = |head: &[u8]| {
                let length = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
                let room = 1..=frame.len();
                head[..8] == [0; 8] && room.contains(&(length as usize)) && head[16] == 2
            };
            let mut heads = frame.windows(HEAD);
            request == FETCH && heads.any(|head| is_batch(head) && head[HEAD - 1] & 7 == CODEC)
        }

        #[test]
        #[ignore = "needs Kafka"]
        fn topics_in_all_four_codecs_are_read() {
            const COUNT: u64 = 1_000;
            run(async {
                let made = log().await;
                let codecs: [(&str, Rewrite); 4] = [
                    ("gzip", is_fetched::<1>),
                    ("snappy", is_fetched::<2>),
                    ("lz4", is_fetched::<3>),
                    ("zstd", is_fetched::<4>),
                ];
                for (codec, is_fetched) in codecs {
                    let at = TopicPartition::new(topic(&made, 1).await, 0);
                    write(codec, &at, 0..COUNT);
                    let line = Proxy::start(&variable("KAFKA_BOOTSTRAP"));
                    line.rewrite(is_fetched);
                    let found = numbers(&open(config(&line.servers())).await, &at).await;
                    assert_eq!(found, (0..COUNT).collect::<Vec<_>>(), "{codec}");
                    assert!(line.has_rewritten(), "what came was compressed by {codec}");
                }
            });
        }
    }
}
