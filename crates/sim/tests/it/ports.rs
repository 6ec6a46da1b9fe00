//! The simulated ports keep the rules that the real ones keep.

use tidegate_sim::{Sim, SimDisk};

/// The body of a test that needs a world.
macro_rules! in_sim {
    ($port:ident, $rule:path) => {
        for seed in 0..20 {
            let mut sim = Sim::new(seed);
            let node = sim.node("a");
            let port = node.env().$port;
            sim.block_on(&node, async move { $rule(&*port).await });
        }
    };
}

mod clock {
    use super::*;
    macro_rules! run {
        ($rule:path) => {
            in_sim!(clock, $rule)
        };
    }
    tidegate_core::clock_conformance!(run);
}

mod spawn {
    use super::*;
    macro_rules! run {
        ($rule:path) => {
            in_sim!(spawn, $rule)
        };
    }
    tidegate_core::spawn_conformance!(run);
}

mod entropy {
    use super::*;
    macro_rules! run {
        ($rule:path) => {
            $rule(&mut *Sim::new(1).node("a").env().entropy)
        };
    }
    tidegate_core::entropy_conformance!(run);
}

mod disk {
    use super::*;
    macro_rules! run {
        ($rule:path) => {{
            let disk = SimDisk::new(1);
            let dir = std::path::Path::new("/data");
            tidegate_core::env::Disk::create_dir_all(&disk, dir).unwrap();
            $rule(&disk, dir);
        }};
    }
    tidegate_core::disk_conformance!(run);
}
