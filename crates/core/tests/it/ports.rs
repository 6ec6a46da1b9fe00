//! The real ports keep the rules that the simulated ones keep.

/// The body of a test that needs a runtime.
macro_rules! on_tokio {
    ($future:expr) => {
        tokio::runtime::Builder::new_multi_thread()
            .enable_time()
            .worker_threads(2)
            .build()
            .unwrap()
            .block_on($future)
    };
}

mod clock {
    macro_rules! run {
        ($rule:path) => {
            on_tokio!($rule(&tidegate_core::env::system::SystemClock::new()))
        };
    }
    tidegate_core::clock_conformance!(run);
}

mod entropy {
    macro_rules! run {
        ($rule:path) => {
            $rule(&mut tidegate_core::env::system::system_entropy())
        };
    }
    tidegate_core::entropy_conformance!(run);
}

mod spawn {
    macro_rules! run {
        ($rule:path) => {
            on_tokio!($rule(&tidegate_core::env::system::TokioSpawn))
        };
    }
    tidegate_core::spawn_conformance!(run);
}

mod disk {
    macro_rules! run {
        ($rule:path) => {{
            let dir = tempfile::tempdir().unwrap();
            $rule(&tidegate_core::env::system::SystemDisk, dir.path());
        }};
    }
    tidegate_core::disk_conformance!(run);
}

/// Two generators of one process never make the same id, and nobody's ids go back.
#[test]
fn ids_of_several_threads_are_unique_and_grow_within_each() {
    use tidegate_core::env::Env;
    use tidegate_core::{EventId, EventIds};

    let env = Env::system();
    let ids = EventIds::new(env.clock.clone(), env.entropy.fork("ids"));
    let mut all: Vec<EventId> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let ids = ids.clone();
                scope.spawn(move || (0..20_000).map(|_| ids.mint()).collect::<Vec<_>>())
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| {
                let minted = thread.join().unwrap();
                assert!(minted.is_sorted_by(|a, b| a < b));
                minted
            })
            .collect()
    });
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 80_000);
}
