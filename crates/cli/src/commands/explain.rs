//! `tidegate explain CODE`: the page of an error code, from inside the binary.

use serde_json::json;

use super::flow;
use crate::args::Output;
use crate::report::{ErrorReport, Exit};
use crate::table;

/// The table of all codes.
const INDEX: &str = include_str!("../../../../docs/errors/README.md");

/// A page about one code, or a few that belong together.
struct ErrorPage {
    name: &'static str,
    text: &'static str,
}

const fn page(name: &'static str, text: &'static str) -> ErrorPage {
    ErrorPage { name, text }
}

const PAGES: &[ErrorPage] = &[
    page(
        "config.invalid",
        include_str!("../../../../docs/errors/config.invalid.md"),
    ),
    page(
        "config.unreadable",
        include_str!("../../../../docs/errors/config.unreadable.md"),
    ),
    page("http", include_str!("../../../../docs/errors/http.md")),
    page(
        "ledger.unreachable",
        include_str!("../../../../docs/errors/ledger.unreachable.md"),
    ),
    page(
        "log.disk",
        include_str!("../../../../docs/errors/log.disk.md"),
    ),
    page(
        "log.login",
        include_str!("../../../../docs/errors/log.login.md"),
    ),
    page(
        "log.missing",
        include_str!("../../../../docs/errors/log.missing.md"),
    ),
    page(
        "log.stopped",
        include_str!("../../../../docs/errors/log.stopped.md"),
    ),
    page(
        "log.unknown-topic",
        include_str!("../../../../docs/errors/log.unknown-topic.md"),
    ),
    page(
        "outbox.dead",
        include_str!("../../../../docs/errors/outbox.dead.md"),
    ),
    page(
        "server.busy-address",
        include_str!("../../../../docs/errors/server.busy-address.md"),
    ),
    page(
        "server.exposed",
        include_str!("../../../../docs/errors/server.exposed.md"),
    ),
    page(
        "stage.unreachable",
        include_str!("../../../../docs/errors/stage.unreachable.md"),
    ),
    page(
        "store.away",
        include_str!("../../../../docs/errors/store.away.md"),
    ),
    page(
        "store.broken",
        include_str!("../../../../docs/errors/store.broken.md"),
    ),
    page(
        "store.damaged",
        include_str!("../../../../docs/errors/store.damaged.md"),
    ),
    page(
        "store.timeout",
        include_str!("../../../../docs/errors/store.timeout.md"),
    ),
];

/// A row of a table of codes.
struct CodeRow {
    codes: Vec<String>,
    place: String,
    meaning: String,
}

pub(crate) fn run(code: &str, output: Output) -> Result<Exit, ErrorReport> {
    if code.to_ascii_uppercase().starts_with("TG") {
        return flow::explain_code(code, output);
    }
    let code = code.to_ascii_lowercase();
    let page = PAGES.iter().find(|page| page.name == code);
    let tables = [INDEX]
        .into_iter()
        .chain(PAGES.iter().map(|page| page.text));
    let rows: Vec<CodeRow> = tables.flat_map(rows).collect();
    let exact = rows.iter().find(|row| row.codes.contains(&code));
    let of_pattern = || {
        rows.iter()
            .find(|row| row.codes.iter().any(|known| matches(known, &code)))
    };
    let row = exact.or_else(of_pattern);
    if page.is_none() && row.is_none() {
        return Err(unknown(&code, &rows));
    }
    let place = row.map(|row| plain(&row.place));
    let meaning = row.map(|row| plain(&row.meaning));
    let text = page.map(|page| plain(page.text));
    let document = json!({ "code": code, "where": place, "text": meaning, "page": text });
    output.print(&document, || {
        let head = [("where", &place), ("meaning", &meaning)].into_iter();
        let head = head.filter_map(|(name, text)| Some(format!("  {name:<8} {}", text.as_ref()?)));
        let head: Vec<String> = head.collect();
        let text = text
            .as_ref()
            .map_or_else(String::new, |text| format!("\n\n{}", text.trim_end()));
        table::plain(&format!("{code}\n{}{text}", head.join("\n")))
    })?;
    Ok(Exit::Ok)
}

fn unknown(code: &str, rows: &[CodeRow]) -> ErrorReport {
    let known = rows
        .iter()
        .flat_map(|row| row.codes.iter().map(String::as_str));
    let near = tidegate_config::nearest(code, known);
    let hint = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => {
            "codes look like log.unknown-topic or TG0010; each error message begins with its own"
                .to_owned()
        }
    };
    ErrorReport::new("usage.code", format!("there is no code `{code}`"))
        .with_hint(hint)
        .with_exit(Exit::Usage)
}

/// The rows of the tables of a text whose first cell holds codes.
fn rows(text: &str) -> Vec<CodeRow> {
    let rows = text.lines().filter_map(|line| {
        let line = line.strip_prefix('|')?.strip_suffix('|')?;
        let cells: Vec<&str> = line.split(" | ").map(str::trim).collect();
        let [first, place, meaning @ ..] = &cells[..] else {
            return None;
        };
        let codes = codes(first);
        (!codes.is_empty() && !meaning.is_empty()).then(|| CodeRow {
            codes,
            place: (*place).to_owned(),
            meaning: meaning.join(" | "),
        })
    });
    rows.collect()
}

/// The codes of a cell. One that begins with a dot has the beginning of the one before it.
fn codes(cell: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for quoted in cell.split('`').skip(1).step_by(2) {
        let code = match (quoted.starts_with('.'), found.last()) {
            (true, Some(before)) => {
                let stem = before.rsplit_once('.').map_or("", |(stem, _)| stem);
                format!("{stem}{quoted}")
            }
            _ => quoted.to_owned(),
        };
        let is_code = |letter: char| {
            letter.is_ascii_lowercase() || letter.is_ascii_digit() || "._-*".contains(letter)
        };
        if code.chars().all(is_code) {
            found.push(code);
        }
    }
    found
}

/// Whether a code is meant, which may be a pattern for several.
fn matches(known: &str, code: &str) -> bool {
    match known.strip_suffix('*') {
        Some(stem) => code.starts_with(stem),
        None => known == code,
    }
}

/// Markdown as people read it in a terminal: a link is its text.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        plain.push_str(before);
        match link
            .split_once("](")
            .and_then(|(name, tail)| Some((name, tail.split_once(')')?.1)))
        {
            Some((name, tail)) if !name.contains('\n') => {
                plain.push_str(name);
                rest = tail;
            }
            _ => {
                plain.push('[');
                rest = link;
            }
        }
    }
    plain.push_str(rest);
    plain.replace("**", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_in_the_binary() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors");
        let mut names: Vec<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter_map(|name| Some(name.strip_suffix(".md")?.to_owned()))
            .filter(|name| name != "README")
            .collect();
        names.sort();
        let known: Vec<&str> = PAGES.iter().map(|page| page.name).collect();
        assert_eq!(names, known);
    }

    #[test]
    fn a_row_names_its_codes_in_full() {
        let found =
            codes("`stage.init.configuration`, `.metrics`, [`log.disk`](log.disk.md), `GET /x`");
        assert_eq!(
            found,
            ["stage.init.configuration", "stage.init.metrics", "log.disk"]
        );
        assert!(matches("stage.offset.*", "stage.offset.gone") && !matches("log.full", "log.ful"));
    }

    #[test]
    fn a_link_is_shown_as_its_text() {
        assert_eq!(
            plain("see [the guide](../a.md), **Fix.** [1]"),
            "see the guide, Fix. [1]"
        );
    }
}
