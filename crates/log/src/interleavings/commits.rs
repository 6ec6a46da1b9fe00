//! The order of the commits of a partition, with callers that wait, go away and lose patience while the
//! commits are made.

use std::sync::{Arc, Mutex};

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::mpsc::{Receiver, Sender, channel};
use shuttle::thread;
use tidegate_core::Topic;

use super::commit_order::{CommitTicket, CommitTickets, check, fail};
use super::play::play;
use crate::error::LogError;
use crate::record::TopicPartition;

/// The events in their order; a number is that of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fact {
    Taking(u64),
    Taken(u64),
    Failing(u64),
    /// `true` if nothing before it had failed it already.
    Failed(u64, bool),
    /// The caller is being told; `true` if it hears of the failure of an earlier one.
    Telling(u64, bool),
    Told(u64, bool),
    Leaving(u64),
    Left(u64),
    Done(u64),
    Refused(u64),
}

use Fact::{Done, Failed, Failing, Leaving, Left, Refused, Taken, Taking, Telling, Told};

/// The scheduler knows nothing of this lock, so nobody comes between an act and its note.
#[derive(Debug, Default)]
struct History(Mutex<Vec<Fact>>);

impl History {
    fn note(&self, fact: Fact) {
        self.0.lock().unwrap().push(fact);
    }
}

/// A commit on its way to the thread that does it.
struct Job {
    number: u64,
    tickets: Vec<(TopicPartition, CommitTicket)>,
    reply: Sender<Result<(), LogError>>,
}

#[derive(Clone)]
struct Scene {
    partition: CommitTicket,
    /// The number of the last commit. Turns are taken under this lock, so it is the number of theirs.
    last: Arc<shuttle::sync::Mutex<u64>>,
    history: Arc<History>,
}

fn at() -> TopicPartition {
    TopicPartition::new(Topic::new("t").unwrap(), 0)
}

impl Scene {
    fn take(&self) -> (u64, CommitTickets) {
        let mut last = self.last.lock().unwrap();
        *last += 1;
        self.history.note(Taking(*last));
        let tickets = CommitTickets::new(vec![(at(), self.partition.next())]);
        self.history.note(Taken(*last));
        (*last, tickets)
    }

    fn acknowledge(&self, number: u64, tickets: &mut CommitTickets, answer: &Result<(), LogError>) {
        let is_rejection = matches!(answer, Err(LogError::PrecedingCommitFailed { .. }));
        let is_failure = answer.is_err() && !is_rejection;
        if is_failure {
            self.history.note(Failing(number));
        }
        self.history.note(Telling(number, is_rejection));
        tickets.acknowledge(answer);
        self.history.note(Told(number, is_rejection));
        if is_failure {
            self.note_failed(number, &tickets.to_vec());
        }
    }

    fn note_failed(&self, number: u64, tickets: &[(TopicPartition, CommitTicket)]) {
        let is_first = check(tickets).is_ok();
        self.history.note(Failed(number, is_first));
    }

    fn leave(&self, number: u64, tickets: CommitTickets) {
        self.history.note(Leaving(number));
        drop(tickets);
        self.history.note(Left(number));
    }

    /// Calls commits, also two one behind the other, and does something else with each.
    fn call(&self, jobs: &Sender<Job>) {
        for _ in 0..2 {
            let count = thread_rng().gen_range(1..3);
            let calls = (0..count).map(|_| self.take()).collect();
            self.see_to(calls, jobs);
        }
    }

    fn see_to(&self, calls: Vec<(u64, CommitTickets)>, jobs: &Sender<Job>) {
        for (number, mut tickets) in calls {
            let held = tickets.to_vec();
            let what_next = thread_rng().gen_range(0..4);
            if what_next == 0 {
                // Dropped before it is submitted, which is a failure.
                self.history.note(Failing(number));
                self.leave(number, tickets);
                self.note_failed(number, &held);
                continue;
            }
            let (reply, answer) = channel();
            let job = Job {
                number,
                tickets: held,
                reply,
            };
            jobs.send(job).unwrap();
            tickets.mark_submitted();
            match what_next {
                1 => self.leave(number, tickets),
                2 => {
                    let unknown = LogError::OutcomeUnknown {
                        doing: "a commit",
                        why: "no answer in time".to_owned(),
                    };
                    self.acknowledge(number, &mut tickets, &Err(unknown));
                }
                _ => {
                    let answer = answer.recv().unwrap();
                    self.acknowledge(number, &mut tickets, &answer);
                }
            }
        }
    }

    /// Makes the commits that come, or fails.
    fn commit(&self, jobs: &Receiver<Job>) {
        while let Ok(Job {
            number,
            tickets,
            reply,
        }) = jobs.recv()
        {
            let fails = thread_rng().gen_range(0..3) == 0;
            let answer = match check(&tickets) {
                Err(error) => {
                    self.history.note(Refused(number));
                    fail(&tickets);
                    Err(error)
                }
                Ok(()) if fails => {
                    self.history.note(Failing(number));
                    fail(&tickets);
                    self.note_failed(number, &tickets);
                    Err(LogError::Closed)
                }
                Ok(()) => {
                    self.history.note(Done(number));
                    Ok(())
                }
            };
            drop(tickets);
            // The caller may be gone.
            reply.send(answer).ok();
        }
    }
}

/// A question about a history: when something was, as its place in the order.
struct Facts(Vec<Fact>);

impl Facts {
    fn when(&self, fact: Fact) -> Option<usize> {
        self.0.iter().position(|other| *other == fact)
    }

    /// Until when no caller can have seen the failure of this commit.
    fn untold_until(&self, number: u64) -> Option<usize> {
        let own = |fact: &Fact| matches!(fact, Telling(told, _) if *told == number);
        let own = self.0.iter().position(own);
        // Of one whose caller has gone, a later one that is refused may tell.
        let others = self.when(Leaving(number)).and_then(|gone| {
            let ends_later = |later| self.when(Told(later, true)).is_none_or(|end| end > gone);
            let may_tell = |(_, fact): &(usize, &Fact)| {
                matches!(fact, Telling(later, true) if *later > number && ends_later(*later))
            };
            let first = self.0.iter().enumerate().find(may_tell);
            first.map(|(when, _)| when)
        });
        own.into_iter().chain(others).min()
    }

    /// From when on a caller must have seen the failure of this commit.
    fn told_by(&self, number: u64) -> Option<usize> {
        let own = |fact: &Fact| matches!(fact, Told(told, _) if *told == number);
        let own = self.0.iter().position(own);
        let failed = |fact: &Fact| matches!(fact, Failed(failed, _) if *failed == number);
        let failed = self.0.iter().position(failed);
        let from = failed.zip(self.when(Left(number)));
        let others = from.and_then(|(failed, left)| {
            let begins_later = |later| {
                let begun = self.when(Telling(later, true));
                begun.is_some_and(|begun| begun > failed.max(left))
            };
            let tells = |fact: &Fact| {
                matches!(fact, Told(later, true) if *later > number && begins_later(*later))
            };
            self.0.iter().position(tells)
        });
        own.into_iter().chain(others).min()
    }

    /// Nothing is done between a failure and the telling of it.
    fn check_done(&self) {
        for (when, fact) in self.0.iter().enumerate() {
            let Done(done) = *fact else { continue };
            for earlier in 1..done {
                let failed = self.when(Failed(earlier, true));
                let is_before = failed.is_some_and(|failed| failed < when);
                let taken = self.when(Taken(done)).unwrap();
                let was_told = self.untold_until(earlier).is_some_and(|told| told < taken);
                assert!(
                    !is_before || was_told,
                    "{done} was done although {earlier} had failed and nobody was told: {:?}",
                    self.0
                );
            }
        }
    }

    /// Nothing is refused without a failure that nobody was told of.
    fn check_refused(&self) {
        for (when, fact) in self.0.iter().enumerate() {
            let Refused(refused) = *fact else { continue };
            let taking = self.when(Taking(refused)).unwrap();
            let is_reason = |earlier: u64| {
                let failing = self.when(Failing(earlier));
                let is_before = failing.is_some_and(|failing| failing < when);
                is_before && self.told_by(earlier).is_none_or(|told| told > taking)
            };
            assert!(
                (1..refused).any(is_reason),
                "{refused} was refused for nothing: {:?}",
                self.0
            );
        }
    }
}

#[test]
fn no_commit_is_done_between_a_failure_and_the_telling_of_it_in_any_order() {
    play(100_000, || {
        let scene = Scene {
            partition: CommitTicket::default(),
            last: Arc::default(),
            history: Arc::default(),
        };
        let (jobs, queue) = channel();
        let mut threads = Vec::new();
        for _ in 0..2 {
            let (scene, jobs) = (scene.clone(), jobs.clone());
            threads.push(thread::spawn(move || scene.call(&jobs)));
        }
        drop(jobs);
        let committer = scene.clone();
        threads.push(thread::spawn(move || committer.commit(&queue)));
        for thread in threads {
            thread.join().unwrap();
        }
        let facts = Facts(scene.history.0.lock().unwrap().clone());
        facts.check_done();
        facts.check_refused();
        // The next caller sees the failure that is left, and then all is as at the beginning.
        let mut next = CommitTickets::new(vec![(at(), scene.partition.next())]);
        let heard = next.check();
        next.acknowledge(&heard);
        drop(next);
        assert!(!scene.partition.next().is_rejected(), "{:?}", facts.0);
        assert!(scene.partition.is_empty(), "{:?}", facts.0);
    });
}
