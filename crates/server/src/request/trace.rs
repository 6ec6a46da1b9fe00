//! The trace that a request belongs to, by the header `traceparent` of W3C Trace Context.

/// The trace id in a `traceparent`, if the header is valid.
pub(super) fn id_of(traceparent: &str) -> Option<&str> {
    let mut fields = traceparent.trim().splitn(5, '-');
    let version = fields.next().filter(|v| is_hex(v, 2) && *v != "ff")?;
    let trace = fields.next().filter(|t| is_hex(t, 32) && !is_zero(t))?;
    fields.next().filter(|p| is_hex(p, 16) && !is_zero(p))?;
    fields.next().filter(|f| is_hex(f, 2))?;
    // Later versions may add fields; the first version has exactly four.
    (version != "00" || fields.next().is_none()).then_some(trace)
}

fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_zero(text: &str) -> bool {
    text.bytes().all(|b| b == b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_valid_header_names_a_trace() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        for header in [
            format!("00-{trace}-00f067aa0ba902b7-01"),
            format!("cc-{trace}-00f067aa0ba902b7-01-what-comes-later"),
        ] {
            assert_eq!(id_of(&header), Some(trace), "{header}");
        }
        for header in [
            String::new(),
            "00".to_owned(),
            format!("00-{trace}"),
            format!("00-{trace}-00f067aa0ba902b7"),
            format!("00-{trace}-00f067aa0ba902b7-01-more"),
            format!("ff-{trace}-00f067aa0ba902b7-01"),
            format!("00-{trace}-0000000000000000-01"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{}-00f067aa0ba902b7-01", trace.to_uppercase()),
            format!("00-{trace}-00f067aa0ba902b7-0é"),
        ] {
            assert_eq!(id_of(&header), None, "{header}");
        }
    }
}
