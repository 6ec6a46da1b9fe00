//! Leaving a group in the middle of its rebalances.

mod needs_kafka {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use tidegate_log::kafka::KafkaLog;
    use tidegate_log::{Happening, Join, Log, Session};

    use crate::child::SESSION;
    use crate::scene::{LIMIT, assigned, group, log, poll, run, topic};

    /// The client does not end before each of its rebalances was answered; left unanswered, closing
    /// takes until its own limit of ten seconds.
    const SOON: Duration = Duration::from_secs(6);

    async fn close(session: &dyn Session, when: &str) {
        let begin = Instant::now();
        session.close().await.unwrap();
        let took = begin.elapsed();
        assert!(took < SOON, "closing {when} took {took:?}");
    }

    /// A group of its own, with a member that has everything.
    async fn one_member(log: &KafkaLog) -> (Join, Arc<dyn Session>) {
        // Whoever leaves before the group has heard of it is forgotten only after this time, and the others
        // wait for it.
        let join = Join {
            session_timeout: SESSION,
            ..Join::new(group(), vec![topic(log, 4).await])
        };
        let stays = log.join(join.clone()).await.unwrap();
        assert_eq!(assigned(&*stays).await.len(), 4);
        (join, stays)
    }

    /// A second member comes and leaves so much later, while the first takes its time to let go.
    async fn come_and_leave(log: KafkaLog, after: Duration) {
        let (join, stays) = one_member(&log).await;
        let owned = Arc::new(AtomicUsize::new(4));
        let owning = Arc::clone(&owned);
        let work = tokio::spawn(async move {
            loop {
                match stays.poll().await.unwrap() {
                    Happening::Revoking(asked) => {
                        owning.fetch_sub(asked.len(), Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(300)).await;
                        stays.release(&asked).await.unwrap();
                    }
                    Happening::Assigned(more) => {
                        owning.fetch_add(more.len(), Ordering::SeqCst);
                    }
                    other @ (Happening::Lost(_) | Happening::Records { .. }) => {
                        panic!("{other:?}")
                    }
                }
            }
        });
        let comes = log.join(join).await.unwrap();
        tokio::time::sleep(after).await;
        close(&*comes, &format!("{after:?} after joining")).await;
        // Whatever it was given meanwhile is the first one's again.
        let begin = Instant::now();
        while owned.load(Ordering::SeqCst) < 4 {
            assert!(begin.elapsed() < LIMIT && !work.is_finished());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        work.abort();
        drop(work.await);
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn leaving_in_the_middle_of_a_rebalance_is_as_quick_as_leaving() {
        run(async {
            let log = log().await;
            // At once, because each is mostly waiting; they have nothing in common.
            let moments = [0, 30, 100, 300, 600, 1_200, 2_000, 3_000];
            let all = moments.map(|after_ms| {
                let after = Duration::from_millis(after_ms);
                tokio::spawn(come_and_leave(log.clone(), after))
            });
            for one in all {
                one.await.unwrap();
            }
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn leaving_answers_what_was_asked_of_us_and_others_have_the_partitions_soon() {
        run(async {
            let log = log().await;
            let (join, stays) = one_member(&log).await;
            let next = log.join(join).await.unwrap();
            while !matches!(poll(&*stays).await.unwrap(), Happening::Revoking(_)) {}
            close(&*stays, "while partitions are asked back").await;
            let begin = Instant::now();
            let mut owned = 0;
            while owned < 4 {
                if let Happening::Assigned(more) = poll(&*next).await.unwrap() {
                    owned += more.len();
                }
            }
            let took = begin.elapsed();
            assert!(took < Duration::from_secs(20), "it took {took:?}");
            close(&*next, "in the end").await;
        });
    }
}
