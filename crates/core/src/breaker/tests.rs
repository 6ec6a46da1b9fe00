use proptest::prelude::*;

use super::*;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn fail(breaker: &mut Breaker, at: u64) -> Option<BreakerChange> {
    call(breaker, CallResult::Failure, at)
}

fn succeed(breaker: &mut Breaker, at: u64) -> Option<BreakerChange> {
    call(breaker, CallResult::Success, at)
}

fn call(breaker: &mut Breaker, result: CallResult, at: u64) -> Option<BreakerChange> {
    let permit = breaker.try_acquire(ms(at)).expect("a call passes");
    breaker.record(permit, result, Duration::ZERO, ms(at))
}

fn opened(rule: Rule) -> Breaker {
    let mut breaker = Breaker::new(rule);
    while breaker.state() == BreakerState::Closed {
        fail(&mut breaker, 0);
    }
    breaker
}

#[test]
fn the_presets_hold_the_documented_numbers() {
    assert_eq!(
        format!("{:?}", [Rule::event_log(), Rule::binding()]),
        "[Rule { trip: InARow { failures: 5 }, open_for: 30s, probes: 1 }, \
         Rule { trip: Rates(Rates { window: 100, minimum_calls: 10, failure_rate: 50.0, \
         slow_call_rate: 80.0, slow_call: 5s }), open_for: 60s, probes: 5 }]"
    );
}

#[test]
fn a_dependency_that_dies_after_ten_thousand_good_calls_opens_at_failure_fifty() {
    let mut breaker = Breaker::new(Rule::binding());
    for _ in 0..10_000 {
        assert_eq!(succeed(&mut breaker, 0), None);
    }
    let failures = (1..).find(|_| fail(&mut breaker, 0).is_some());
    assert_eq!(failures, Some(50));
}

#[test]
fn it_opens_half_by_its_timer_and_not_by_a_call() {
    let mut breaker = opened(Rule::event_log());
    assert_eq!(breaker.wakes_at(), Some(ms(30_000)));
    assert!(
        breaker.try_acquire(ms(99_000)).is_none(),
        "a call does not open it"
    );
    assert_eq!(breaker.tick(ms(29_999)), None);
    let change = breaker.tick(ms(30_000)).unwrap();
    assert_eq!(
        (change.from, change.to),
        (BreakerState::Open, BreakerState::HalfOpen)
    );
}

#[test]
fn half_open_lets_exactly_its_permits_through() {
    let mut breaker = opened(Rule::binding());
    breaker.tick(ms(60_000));
    let permits: Vec<Permit> = std::iter::from_fn(|| breaker.try_acquire(ms(60_000)))
        .take(100)
        .collect();
    assert_eq!(permits.len(), 5);
    let mut permits = permits.into_iter();
    breaker.release(permits.next().unwrap());
    assert!(
        breaker.try_acquire(ms(60_000)).is_some(),
        "a released permit is free again"
    );
    assert!(breaker.try_acquire(ms(60_000)).is_none());
}

#[test]
fn a_result_from_an_earlier_state_counts_for_nothing() {
    let mut breaker = Breaker::new(Rule::event_log());
    let late = breaker.try_acquire(ms(0)).unwrap();
    let also_late = breaker.try_acquire(ms(0)).unwrap();
    while breaker.state() == BreakerState::Closed {
        fail(&mut breaker, 0);
    }
    breaker.tick(ms(30_000));
    assert_eq!(
        breaker.record(late, CallResult::Success, ms(30_000), ms(30_000)),
        None
    );
    breaker.release(also_late);
    assert!(
        breaker.try_acquire(ms(30_000)).is_some(),
        "the one probe is still there"
    );
    assert!(
        breaker.try_acquire(ms(30_000)).is_none(),
        "and there is only one"
    );
}

#[test]
fn probes_that_never_answer_open_it_again() {
    let mut breaker = opened(Rule::event_log());
    breaker.tick(ms(30_000));
    assert_eq!(
        breaker.wakes_at(),
        None,
        "without a probe there is nothing to wait for"
    );
    let hung = breaker.try_acquire(ms(40_000)).unwrap();
    assert_eq!(breaker.wakes_at(), Some(ms(70_000)));
    assert_eq!(
        breaker.tick(ms(70_000)).map(|c| c.to),
        Some(BreakerState::Open)
    );
    assert_eq!(
        breaker.tick(ms(100_000)).map(|c| c.to),
        Some(BreakerState::HalfOpen)
    );
    assert_eq!(
        breaker.record(hung, CallResult::Failure, ms(1), ms(100_000)),
        None
    );
    assert_eq!(
        succeed(&mut breaker, 100_000).map(|c| c.to),
        Some(BreakerState::Closed)
    );
}

/// One step of a random run.
#[derive(Debug, Clone, Copy)]
enum Step {
    Call(CallResult),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Call(CallResult::Failure)),
        2 => Just(Step::Call(CallResult::Success)),
        2 => (0_u64..6_000).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 0..300)
}

/// The two kinds without rates, by looking at the whole history each time.
struct Naive {
    rule: Rule,
    state: BreakerState,
    since: u64,
    /// Calls of the current state: time and whether it failed.
    calls: Vec<(u64, bool)>,
}

impl Naive {
    fn enter(&mut self, state: BreakerState, now: u64) {
        self.state = state;
        self.since = now;
        self.calls.clear();
    }

    fn wait_until(&mut self, now: u64) {
        if self.state == BreakerState::Open && ms(now - self.since) >= self.rule.open_for {
            self.enter(BreakerState::HalfOpen, now);
        }
    }

    fn call(&mut self, failed: bool, now: u64) {
        if self.state == BreakerState::Open {
            return;
        }
        self.calls.push((now, failed));
        if self.state == BreakerState::HalfOpen {
            let good = self.calls.iter().filter(|(_, failed)| !failed).count();
            if failed {
                self.enter(BreakerState::Open, now);
            } else if good == self.rule.probes as usize {
                self.enter(BreakerState::Closed, now);
            }
            return;
        }
        let (bad, limit) = match &self.rule.trip {
            Trip::InARow { failures } => (
                self.calls
                    .iter()
                    .rev()
                    .take_while(|(_, failed)| *failed)
                    .count(),
                failures,
            ),
            Trip::Rates(_) => unreachable!("rates are compared with another implementation"),
        };
        if failed && bad >= *limit as usize {
            self.enter(BreakerState::Open, now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn failures_in_a_row_agree_with_a_naive_model(
        steps in steps(), failures in 1_u32..8, probes in 1_u32..5,
    ) {
        let rule = Rule { trip: Trip::InARow { failures }, open_for: ms(15_000), probes };
        let mut breaker = Breaker::new(rule.clone());
        let mut naive = Naive { rule, state: BreakerState::Closed, since: 0, calls: Vec::new() };
        let mut now = 0;
        for step in steps {
            match step {
                Step::Wait(pause) => {
                    now += pause;
                    breaker.tick(ms(now));
                    naive.wait_until(now);
                }
                Step::Call(result) => {
                    let permit = breaker.try_acquire(ms(now));
                    prop_assert_eq!(permit.is_none(), naive.state == BreakerState::Open);
                    if let Some(permit) = permit {
                        breaker.record(permit, result, Duration::ZERO, ms(now));
                    }
                    naive.call(result == CallResult::Failure, now);
                }
            }
            prop_assert_eq!(breaker.state(), naive.state);
        }
    }
}
