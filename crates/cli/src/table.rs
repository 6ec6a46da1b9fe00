//! Tables for people.

use comfy_table::{Table, presets};
use tidegate_core::books::{Account, Ledger};

/// So many of something, in words.
pub(crate) fn counted(count: u64, word: &str) -> String {
    match count {
        1 => format!("1 {word}"),
        _ => format!("{count} {word}s"),
    }
}

/// The ledger as a table, one component per row.
pub(crate) fn ledger(ledger: &Ledger) -> String {
    if ledger.components.is_empty() {
        return "no component keeps books here yet; balanced".to_owned();
    }
    let mut header = ["component", "kind", "accepted"]
        .map(str::to_owned)
        .to_vec();
    let places = Account::default().places();
    header.extend(places.map(|(name, _)| name.replace('_', " ")));
    let rows = ledger.components.iter().map(|component| {
        let account = &component.account;
        let mut row = vec![
            component.name.clone(),
            component.kind.to_string(),
            account.accepted.to_string(),
        ];
        row.extend(account.places().map(|(_, count)| count.to_string()));
        row
    });
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let table = grid(&header, rows.collect());
    let verdict = if ledger.balanced {
        "balanced"
    } else {
        "NOT balanced"
    };
    format!("{table}\n{verdict}")
}

/// Rows under a header.
pub(crate) fn grid(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(header);
    let rows = rows.into_iter();
    table.add_rows(rows.map(|row| row.into_iter().map(|cell| plain(&cell)).collect::<Vec<_>>()));
    table.to_string()
}

/// A text that does nothing to a terminal: others choose types and keys.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' => plain.push(letter),
            _ if letter.is_control() => plain.extend(letter.escape_default()),
            _ => plain.push(letter),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_does_nothing_to_the_terminal() {
        let shown = grid(&["type"], vec![vec!["a\u{1b}[31mb\u{7}\u{9b}".to_owned()]]);
        assert!(shown.contains("a\\u{1b}[31mb\\u{7}\\u{9b}"), "{shown}");
        assert!(!shown.contains('\u{1b}'));
    }
}
