//! The words of a text, as both databases index them.
//!
//! Splitting and folding is done here and nowhere else. FTS5 and `tsvector` get finished words, so that a
//! search finds the same events on both.

use std::collections::BTreeSet;

use crate::limit::{WORD_CHARACTERS, WORDS_OF_EVENT};

/// The different words of a text, in order: runs of letters and digits, in lowercase.
///
/// Marks that stand on a letter are dropped. A word longer than [`WORD_CHARACTERS`] is cut, and a text has at
/// most [`WORDS_OF_EVENT`] of them.
///
/// ```
/// use tidegate_eventlog::words;
/// assert_eq!(words("Booking BK-1 created, ÜBER booked"), ["1", "bk", "booked", "booking", "created", "über"]);
/// ```
#[must_use]
pub fn words(text: &str) -> Vec<String> {
    let mut words = BTreeSet::new();
    let mut word = String::new();
    let mut length = 0;
    for character in text.chars().chain([' ']) {
        if character.is_alphanumeric() {
            if length < WORD_CHARACTERS {
                // Lowercase forms may hold a mark, which a query would not have.
                word.extend(character.to_lowercase().filter(|c| c.is_alphanumeric()));
            }
            length += 1;
        } else if !is_mark(character) && length > 0 {
            if words.len() == WORDS_OF_EVENT {
                break;
            }
            words.insert(std::mem::take(&mut word));
            length = 0;
        }
    }
    words.into_iter().collect()
}

/// Whether a character stands on the one before it.
fn is_mark(character: char) -> bool {
    matches!(character, '\u{300}'..='\u{36f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_and_folded_by_one_rule() {
        for (text, expect) in [
            ("", &[][..]),
            ("--- !", &[]),
            ("one two  one", &["one", "two"]),
            ("PET-001", &["001", "pet"]),
            ("it's", &["it", "s"]),
            ("e\u{301}te\u{301}", &["ete"]),
            ("été", &["été"]),
            ("日本語 テスト", &["テスト", "日本語"]),
        ] {
            assert_eq!(words(text), expect, "{text:?}");
        }
    }

    #[test]
    fn long_words_are_cut_and_many_words_are_left_out() {
        let long = "x".repeat(WORD_CHARACTERS + 9);
        assert_eq!(words(&long), [long[..WORD_CHARACTERS].to_owned()]);
        let many: Vec<String> = (0..WORDS_OF_EVENT + 5).map(|n| format!("w{n}")).collect();
        assert_eq!(words(&many.join(" ")).len(), WORDS_OF_EVENT);
    }
}
