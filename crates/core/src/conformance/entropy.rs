//! Rules of [`Entropy`].

use std::collections::BTreeSet;

use crate::env::Entropy;

/// Numbers do not repeat.
pub fn numbers_do_not_repeat(entropy: &mut dyn Entropy) {
    let drawn: BTreeSet<u64> = (0..10_000).map(|_| entropy.next_u64()).collect();
    assert_eq!(drawn.len(), 10_000);
}

/// Every bit is set about half of the time.
pub fn every_bit_is_set_about_half_of_the_time(entropy: &mut dyn Entropy) {
    let mut set = [0_u32; 64];
    for _ in 0..10_000 {
        let number = entropy.next_u64();
        for (bit, count) in set.iter_mut().enumerate() {
            *count += u32::from(number >> bit & 1 == 1);
        }
    }
    // Ten standard deviations of 50 around 5,000.
    assert!(
        set.iter().all(|count| (4_500..5_500).contains(count)),
        "{set:?}"
    );
}

/// A fork depends on its name and not on what was drawn.
pub fn a_fork_depends_on_its_name_alone(entropy: &mut dyn Entropy) {
    let before = entropy.fork("part").next_u64();
    entropy.next_u64();
    assert_eq!(entropy.fork("part").next_u64(), before);
    assert_ne!(entropy.fork("other").next_u64(), before);
    let nested = entropy.fork("part").fork("part").next_u64();
    assert_ne!(nested, before, "a part of a part has its own stream");
}

/// One test per rule; `$run` is a macro that is given the rule.
#[macro_export]
macro_rules! entropy_conformance {
    ($run:path) => {
        $crate::conformance_tests!(
            $run,
            $crate::conformance::entropy,
            [
                numbers_do_not_repeat,
                every_bit_is_set_about_half_of_the_time,
                a_fork_depends_on_its_name_alone,
            ]
        );
    };
}
