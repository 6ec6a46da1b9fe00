//! Leaving a group in the middle of its rebalances.

mod needs_kafka {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use tidegate_log::{Happening, Join, Log, Session};

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

    #[test]
    #[ignore = "needs Kafka"]
    fn leaving_in_the_middle_of_a_rebalance_is_as_quick_as_leaving() {
        run(async {
            let log = log().await;
            let topic = topic(&log, 4).await;
            let join = Join::new(group(), vec![topic]);
            // One member stays, and takes a while to let go of anything.
            let stays = log.join(join.clone()).await.unwrap();
            assert_eq!(assigned(&*stays).await.len(), 4);
            let owned = Arc::new(AtomicUsize::new(4));
            let (working, owning) = (Arc::clone(&stays), Arc::clone(&owned));
            let work = tokio::spawn(async move {
                loop {
                    match working.poll().await.unwrap() {
                        Happening::Revoking(asked) => {
                            owning.fetch_sub(asked.len(), Ordering::SeqCst);
                            tokio::time::sleep(Duration::from_millis(300)).await;
                            working.release(&asked).await.unwrap();
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
            for after_ms in [0, 30, 100, 300, 600, 1_200, 2_000, 3_000] {
                let comes = log.join(join.clone()).await.unwrap();
                tokio::time::sleep(Duration::from_millis(after_ms)).await;
                close(&*comes, &format!("{after_ms} ms after joining")).await;
            }
            let begin = Instant::now();
            while owned.load(Ordering::SeqCst) < 4 {
                assert!(begin.elapsed() < LIMIT && !work.is_finished());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            work.abort();
            drop(work.await);

            // Leaving answers also what was asked of us, and others have the partitions soon.
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
