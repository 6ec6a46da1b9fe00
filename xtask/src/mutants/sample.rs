//! Which mutants are judged.

use std::collections::BTreeMap;

use crate::mutants::list::Mutant;

/// Draws `size` mutants, evenly by file: every file gives one before any gives two.
///
/// Within a file the order is a hash of seed and key. A mutant that appears or goes therefore moves
/// no other, and the judgments of earlier runs stay of use.
pub(crate) fn draw(
    mutants: &[Mutant],
    size: usize,
    seed: u64,
    is_left_out: impl Fn(&Mutant) -> bool,
) -> Vec<&Mutant> {
    let mut files = files(mutants);
    for of_file in files.values_mut() {
        of_file.retain(|mutant| !is_left_out(mutant));
        of_file.sort_by_key(|mutant| (rank(seed, &mutant.key), &mutant.key));
    }
    let most = files.values().map(Vec::len).max().unwrap_or_default();
    let mut drawn = Vec::new();
    for round in 0..most {
        let mut of_round: Vec<&Mutant> = files
            .values()
            .filter_map(|of_file| of_file.get(round).copied())
            .collect();
        // The last round is cut off; by name, the files at the end would always lose.
        of_round.sort_by_key(|mutant| rank(seed, &mutant.file));
        drawn.extend(of_round);
    }
    drawn.truncate(size.max(files.len()));
    drawn
}

/// The mutants by file.
pub(crate) fn files(mutants: &[Mutant]) -> BTreeMap<&str, Vec<&Mutant>> {
    let mut files: BTreeMap<&str, Vec<&Mutant>> = BTreeMap::new();
    for mutant in mutants {
        files.entry(&mutant.file).or_default().push(mutant);
    }
    files
}

/// FNV-1a with the last step of splitmix64, which spreads keys that differ in one character.
fn rank(seed: u64, key: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in seed.to_le_bytes().into_iter().chain(key.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutants() -> Vec<Mutant> {
        let mut mutants = vec![Mutant::of("small.rs", "the only one")];
        for number in 0..50 {
            mutants.push(Mutant::of("large.rs", &number.to_string()));
            mutants.push(Mutant::of("other.rs", &number.to_string()));
        }
        mutants
    }

    fn keys(sample: &[&Mutant]) -> Vec<String> {
        sample.iter().map(|mutant| mutant.key.clone()).collect()
    }

    #[test]
    fn every_file_is_in_the_sample_and_none_much_more_often() {
        let mutants = mutants();
        let sample = draw(&mutants, 11, 1, |_| false);
        let count = |file| sample.iter().filter(|mutant| mutant.file == file).count();
        assert_eq!(count("small.rs"), 1);
        assert_eq!(count("large.rs"), 5);
        assert_eq!(count("other.rs"), 5);
        assert_eq!(draw(&mutants, 1, 1, |_| false).len(), 3);
    }

    #[test]
    fn a_seed_draws_the_same_sample_and_another_seed_another() {
        let mutants = mutants();
        let first = keys(&draw(&mutants, 11, 1, |_| false));
        assert_eq!(keys(&draw(&mutants, 11, 1, |_| false)), first);
        assert_ne!(keys(&draw(&mutants, 11, 2, |_| false)), first);
    }

    #[test]
    fn a_mutant_that_is_left_out_is_replaced_by_another_of_its_file() {
        let mutants = mutants();
        let first = keys(&draw(&mutants, 11, 1, |_| false));
        let out = first.iter().find(|key| key.starts_with("large")).unwrap();
        let second = draw(&mutants, 11, 1, |mutant| mutant.key == *out);
        let new = second.iter().filter(|mutant| !first.contains(&mutant.key));
        let new: Vec<&str> = new.map(|mutant| mutant.file.as_str()).collect();
        assert_eq!((second.len(), new), (11, vec!["large.rs"]));
    }
}
