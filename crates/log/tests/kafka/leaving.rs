//! Leaving a group in the middle of its rebalances.

mod needs_kafka {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use tidegate_log::kafka::KafkaLog;
    use tidegate_log::{Join, Log, Session, SessionEvent};
    use tokio::sync::watch;

    use crate::child::SESSION;
    use crate::scene::{LIMIT, assigned, group, log, poll, run, topic};

    /// The client does not end before each of its rebalances was answered; left unanswered, closing
    /// takes until this limit of its own.
    const OWN_LIMIT: Duration = Duration::from_secs(10);

    async fn close(session: &dyn Session, when: &str) {
        let begin = Instant::now();
        session.close().await.unwrap();
        let took = begin.elapsed();
        assert!(took < OWN_LIMIT, "closing {when} took {took:?}");
    }

    /// A group of its own, with a member that has everything.
    async fn one_member(log: &KafkaLog, session_timeout: Duration) -> (Join, Arc<dyn Session>) {
        let join = Join {
            session_timeout,
            ..Join::new(group(), vec![topic(log, 4).await])
        };
        let stays = log.join(join.clone()).await.unwrap();
        assert_eq!(assigned(&*stays).await.len(), 4);
        (join, stays)
    }

    /// When a second member leaves.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Moment {
        /// So many milliseconds after it came, somewhere in its joining.
        After(u64),
        /// The first one is asked to let partitions go, and does not before the second has left.
        Asked,
        /// The first one has let go.
        LetGo,
        /// The second one has its share.
        Shared,
    }

    /// The fate of the first member.
    #[derive(Debug, Default)]
    struct First {
        owned: usize,
        was_asked: bool,
        has_let_go: bool,
    }

    async fn until<T>(watched: &mut watch::Receiver<T>, is_so: impl FnMut(&T) -> bool) {
        let waited = tokio::time::timeout(LIMIT, watched.wait_for(is_so)).await;
        waited.expect("it happens in time").unwrap();
    }

    /// The first member: lets go what it is asked for, and says how it fares.
    async fn stay(
        stays: Arc<dyn Session>,
        first: watch::Sender<First>,
        mut may_let_go: watch::Receiver<bool>,
    ) {
        loop {
            match stays.poll().await.unwrap() {
                SessionEvent::Revoking(asked) => {
                    first.send_modify(|first| {
                        first.owned -= asked.len();
                        first.was_asked = true;
                    });
                    until(&mut may_let_go, |may| *may).await;
                    stays.release(&asked).await.unwrap();
                    first.send_modify(|first| first.has_let_go = true);
                }
                SessionEvent::Assigned(more) => {
                    first.send_modify(|first| first.owned += more.len());
                }
                other @ (SessionEvent::Lost(_) | SessionEvent::Records { .. }) => {
                    panic!("{other:?}")
                }
            }
        }
    }

    /// A second member comes and leaves.
    async fn come_and_leave(log: KafkaLog, moment: Moment) {
        // A member that leaves before the group has heard of it is forgotten only after this time, and the others
        // wait for it.
        let (join, stays) = one_member(&log, SESSION).await;
        let (tell, mut first) = watch::channel(First {
            owned: 4,
            ..First::default()
        });
        let (let_go, may_let_go) = watch::channel(moment != Moment::Asked);
        let work = tokio::spawn(stay(stays, tell, may_let_go));
        let comes = log.join(join).await.unwrap();
        match moment {
            Moment::After(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            Moment::Asked => until(&mut first, |first| first.was_asked).await,
            Moment::LetGo => until(&mut first, |first| first.has_let_go).await,
            Moment::Shared => drop(assigned(&*comes).await),
        }
        close(&*comes, &format!("({moment:?})")).await;
        let_go.send_replace(true);
        // Whatever it was given meanwhile is the first one's again.
        until(&mut first, |first| first.owned == 4).await;
        work.abort();
        drop(work.await);
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn leaving_in_the_middle_of_a_rebalance_is_as_quick_as_leaving() {
        run(async {
            let log = log().await;
            // At once, because each is mostly waiting; they have nothing in common.
            let moments = [
                Moment::After(0),
                Moment::After(30),
                Moment::After(100),
                Moment::Asked,
                Moment::LetGo,
                Moment::Shared,
            ];
            let all = moments.map(|moment| tokio::spawn(come_and_leave(log.clone(), moment)));
            for one in all {
                one.await.unwrap();
            }
        });
    }

    #[test]
    #[ignore = "needs Kafka"]
    fn leaving_answers_what_was_asked_of_us_and_others_have_the_partitions() {
        run(async {
            let log = log().await;
            // Longer than anything is waited for, so that others have them because we have left.
            let (join, stays) = one_member(&log, LIMIT * 3).await;
            let next = log.join(join).await.unwrap();
            while !matches!(poll(&*stays).await.unwrap(), SessionEvent::Revoking(_)) {}
            close(&*stays, "while partitions are asked back").await;
            let mut owned = 0;
            while owned < 4 {
                if let SessionEvent::Assigned(more) = poll(&*next).await.unwrap() {
                    owned += more.len();
                }
            }
            close(&*next, "in the end").await;
        });
    }
}
