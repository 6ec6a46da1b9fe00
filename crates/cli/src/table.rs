//! Tables for people.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
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
        return "nothing keeps books here yet: no topic, no queue, no event".to_owned();
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

/// Rows under a header. On a terminal they take its width at most: longer cells continue in the next line.
pub(crate) fn grid(header: &[&str], rows: Vec<Vec<String>>) -> String {
    fitted(header, rows, None)
}

/// The same, in so many columns.
fn fitted(header: &[&str], rows: Vec<Vec<String>>, width: Option<u16>) -> String {
    let mut table = Table::new();
    let rule = LineStyle::none().fill('─').junction('─');
    table.load_style(TableStyle::new().header_separator(rule));
    table.set_content_arrangement(ContentArrangement::Dynamic);
    if let Some(width) = width {
        table.set_width(width);
    }
    table.set_header(header);
    let are_numbers = |column: usize| {
        let mut cells = rows.iter().filter_map(|row| row.get(column));
        cells.all(|cell| is_number(cell))
    };
    let numbers: Vec<usize> = (0..header.len()).filter(|at| are_numbers(*at)).collect();
    for row in &rows {
        let row: Vec<String> = row.iter().map(|cell| plain(cell)).collect();
        table.add_row(row);
    }
    for column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// Whether a cell is a number, a size, or nothing: such columns are aligned at their ends.
fn is_number(cell: &str) -> bool {
    let (number, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    let is_digit = |letter: char| letter.is_ascii_digit() || letter == '.';
    cell == "-" || (UNITS.contains(&unit) || unit.is_empty()) && number.chars().all(is_digit)
}

/// The units of sizes.
const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// A number of bytes as people read it.
pub(crate) fn size(bytes: u64) -> String {
    let mut unit = 0;
    let mut rest = bytes as f64;
    while rest >= 1024.0 && unit + 1 < UNITS.len() {
        rest /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{rest:.1} {}", UNITS[unit]),
    }
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
    fn a_table_fits_into_its_width_and_has_no_rule_between_rows() {
        let rows = || {
            let row = |name: &str, count: &str| vec![name.to_owned(), count.to_owned()];
            vec![row("a name that is too long", "7"), row("b", "1234")]
        };
        let whole = fitted(&["name", "count"], rows(), None);
        let lines: Vec<&str> = whole.lines().collect();
        assert_eq!(lines.len(), 4, "{whole}");
        assert_eq!(lines[2], " a name that is too long       7");
        assert_eq!(lines[3], " b                          1234");
        assert_eq!(whole.matches('─').count(), lines[1].chars().count());
        let narrow = fitted(&["name", "count"], rows(), Some(24));
        let width = narrow.lines().map(|line| line.chars().count()).max();
        assert!(width <= Some(24), "{narrow}");
        assert!(
            narrow.contains("too long") && narrow.contains("1234"),
            "{narrow}"
        );
    }

    #[test]
    fn sizes_have_one_form() {
        for (bytes, expect) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (34_918, "34.1 KiB"),
            (7_332_748, "7.0 MiB"),
            (3 << 30, "3.0 GiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(size(bytes), expect);
            assert!(is_number(&size(bytes)));
        }
        assert!(is_number("-") && !is_number("p-1") && !is_number("7 days"));
    }

    #[test]
    fn foreign_text_does_nothing_to_the_terminal() {
        let shown = grid(&["type"], vec![vec!["a\u{1b}[31mb\u{7}\u{9b}".to_owned()]]);
        assert!(shown.contains("a\\u{1b}[31mb\\u{7}\\u{9b}"), "{shown}");
        assert!(!shown.contains('\u{1b}'));
    }
}
