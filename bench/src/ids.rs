//! Minting an event id, beside the version 7 of the `uuid` crate.

use std::hint::black_box;

use tidegate_core::EventIds;
use tidegate_core::env::Env;

use crate::measure::{Measurement, nanos_per_call};

pub(crate) fn run() {
    let env = Env::system();
    let ids = EventIds::new(env.clock.clone(), env.entropy.fork("ids"));
    let ours = nanos_per_call(|| {
        black_box(ids.mint());
    });
    let reference = nanos_per_call(|| {
        black_box(uuid::Uuid::now_v7());
    });
    Measurement {
        bench: "ids/mint",
        ours,
        reference,
        reference_is: "uuid crate, Uuid::now_v7",
        unit: "ns/id",
    }
    .print();
    let clock = env.clock;
    let floor = nanos_per_call(|| {
        black_box(clock.now());
    });
    Measurement {
        bench: "ids/mint-over-clock",
        ours,
        reference: floor,
        reference_is: "reading the wall clock once",
        unit: "ns/id",
    }
    .print();
}
