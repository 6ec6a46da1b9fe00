//! Plain columns for people.

/// Lays `rows` out under `head`, each column as wide as its longest cell.
pub(crate) fn render(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = line(&mut head.iter().copied());
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up_without_trailing_blanks() {
        let rows = vec![
            vec!["postgres".to_owned(), "up".to_owned()],
            vec!["x".to_owned()],
        ];
        assert_eq!(
            super::render(&["name", "state"], &rows),
            "name      state\npostgres  up\nx\n"
        );
    }
}
