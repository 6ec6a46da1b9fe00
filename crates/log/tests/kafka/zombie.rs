//! A member that is stopped past its session and wakes up again.

mod needs_kafka {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tidegate_core::Offset;
    use tidegate_log::{Commit, Join, Log, OffsetCommit, SessionEvent, TopicPartition};
    use tidegate_testkit::child::{ChildLines, pause, resume};

    use crate::child::{self, Role, SESSION};
    use crate::scene::{
        LIMIT, append, append_of, group, log, number, numbers_once, poll, run, topic, variable,
    };

    /// The output of the child so far.
    fn listen(lines: ChildLines) -> Arc<Mutex<Vec<String>>> {
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in lines {
                heard.lock().unwrap().push(line);
            }
        });
        said
    }

    async fn until(what: &str, is_so: impl Fn() -> bool) {
        let waiting = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(
            tokio::time::timeout(LIMIT, waiting).await.is_ok(),
            "{what} did not happen"
        );
    }

    /// Stops a child in the middle of its work for longer than its session, while we take over; then
    /// lets it go on.
    async fn stop_and_go_on(role: Role) -> String {
        let log = log().await;
        let at = TopicPartition::new(topic(&log, 1).await, 0);
        let out = TopicPartition::new(topic(&log, 1).await, 0);
        append(&log, &at, 0..50_000).await;
        let group = group();
        let servers = variable("KAFKA_BOOTSTRAP");
        let (mut process, lines) = child::start(role, &servers, &group, &at.topic, &out.topic);
        let said = listen(lines);
        let count = |word: &str| {
            let said = said.lock().unwrap();
            said.iter().filter(|line| line.starts_with(word)).count()
        };
        until("work of the child", || count("done") >= 20).await;
        pause(&process).unwrap();

        // We join and get the partition once the group has forgotten the child.
        let join = Join {
            max_poll_records: 10,
            session_timeout: SESSION,
            ..Join::new(group.clone(), vec![at.topic.clone()])
        };
        let session = log.join(join).await.unwrap();
        let mut begin = None;
        let mut next = Offset(0);
        let mut settled = 0;
        while settled < 200 {
            match poll(&*session).await.unwrap() {
                SessionEvent::Assigned(all) => {
                    begin = Some(all[0].position);
                    // It wakes up the moment that the partition is ours.
                    resume(&process).unwrap();
                }
                SessionEvent::Records { fence, batch } => {
                    let copies = batch
                        .records
                        .iter()
                        .map(|stored| append_of(&out, number(stored)));
                    let commit = Commit {
                        appends: match role {
                            Role::Copies => copies.collect(),
                            Role::Settles => vec![],
                        },
                        offsets: vec![OffsetCommit {
                            at: batch.at,
                            fence,
                            next: batch.next,
                            metadata: "parent".to_owned(),
                            postings: vec![],
                        }],
                    };
                    session.commit(commit).await.unwrap();
                    settled += batch.records.len();
                    next = batch.next;
                    let found = log
                        .committed(&group, std::slice::from_ref(&at))
                        .await
                        .unwrap();
                    let found = found[0].clone().unwrap();
                    assert_eq!((found.next, found.metadata.as_str()), (next, "parent"));
                }
                // The child asks to be let in again.
                SessionEvent::Revoking(asked) => session.release(&asked).await.unwrap(),
                SessionEvent::Lost(lost) => panic!("lost {lost:?}"),
            }
        }
        // The commits of the zombie when it was stopped were refused, or never came to be.
        until("the zombie's loss", || count("lost") >= 1).await;
        let begin = begin.unwrap();
        let beyond = {
            let said = said.lock().unwrap();
            let done = said.iter().filter_map(|line| line.strip_prefix("done "));
            done.map(|offset| Offset(offset.parse().unwrap()))
                .filter(|offset| *offset >= begin && *offset < next)
                .count()
        };
        assert_eq!(beyond, 0, "the zombie settled what was ours");
        process.kill().unwrap();
        process.wait().unwrap();
        if matches!(role, Role::Copies) {
            let expected: Vec<u64> = (0..u64::try_from(next.0).unwrap()).collect();
            let found = numbers_once(&log, &out, expected.len()).await;
            assert_eq!(
                found, expected,
                "every record was copied exactly once, by either"
            );
        }
        format!(
            "began at {begin} where the zombie was stopped, went on to {next}; the zombie was fenced {} times",
            count("fenced")
        )
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn t21_a_stopped_member_that_wakes_up_writes_and_commits_nothing() {
        run(async { println!("{}", stop_and_go_on(Role::Copies).await) });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn a_stopped_member_that_wakes_up_commits_no_offset() {
        run(async { println!("{}", stop_and_go_on(Role::Settles).await) });
    }
}
