//! The demo as a picture: accepted, delivered and on disk over time.

use std::fmt::Write;
use std::time::Duration;

use super::sample::OutageSample;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 50.0;
/// The width of a letter, at most.
const LETTER: f64 = 8.0;
/// More marks than these on an axis would touch each other.
const MARKS: f64 = 8.0;

/// Colors for a light and a dark page. The picture brings its own ground along, so that it can be read
/// where the page does not say which it is.
const STYLE: &str = "\
text{font:12px system-ui,sans-serif;fill:#24292f}\
.ground{fill:#ffffff}.grid{stroke:#d0d7de}.outage{fill:#ffdcd7}.phase{stroke:#8c959f;stroke-dasharray:2 4}\
.line{fill:none;stroke-linejoin:round}\
.accepted{stroke:#8ec2ff;stroke-width:6}.delivered{stroke:#1a7f37;stroke-width:2}\
.on-disk{stroke:#bc4c00;stroke-width:2}\
@media (prefers-color-scheme:dark){text{fill:#d1d7e0}.ground{fill:#0d1117}.grid{stroke:#30363d}\
.outage{fill:#4a1d1a}.phase{stroke:#6e7681}.accepted{stroke:#1f4b86}.delivered{stroke:#3fb950}\
.on-disk{stroke:#f0883e}}";

/// One value of a sample.
type SampleValue = fn(&OutageSample) -> i64;

/// The chart as an SVG document. `phases` are the moments at which they began.
pub(crate) fn chart(samples: &[OutageSample], phases: &[(Duration, &'static str)]) -> String {
    let last = samples.last().cloned().unwrap_or_default();
    let scale = Scale {
        seconds: last.at.as_secs_f64().max(1.0),
        events: ceiling(last.accepted.max(1) as f64),
    };
    let mut body = String::new();
    for (from, until) in outages(samples) {
        let (x, end) = (scale.x(from), scale.x(until));
        let (width, height) = (end - x, scale.y(0.0) - TOP);
        let outage = format!(
            r#"<rect class="outage" x="{x:.1}" y="{TOP}" width="{width:.1}" height="{height:.1}"/>"#
        );
        line(&mut body, &outage);
    }
    scale.draw_axes(&mut body);
    for (index, (at, name)) in phases.iter().enumerate() {
        let (x, bottom) = (scale.x(*at), scale.y(0.0));
        let next = phases.get(index + 1).map_or(last.at, |(at, _)| *at);
        // A phase that is over at once has no room for its name.
        let has_room = scale.x(next) - x > LETTER * name.len() as f64;
        let mark =
            format!(r#"<line class="phase" x1="{x:.1}" y1="{TOP}" x2="{x:.1}" y2="{bottom:.1}"/>"#);
        line(&mut body, &mark);
        if has_room {
            let (x, y) = (x + 3.0, TOP - 6.0);
            let label = format!(r#"<text x="{x:.1}" y="{y}">{name}</text>"#);
            line(&mut body, &label);
        }
    }
    let series: [(&str, &str, SampleValue); 3] = [
        ("accepted", "accepted", |sample| sample.accepted),
        ("delivered", "delivered", |sample| sample.delivered),
        ("on-disk", "on disk", |sample| sample.on_disk),
    ];
    for ((class, name, value), column) in series.into_iter().zip(0_i32..) {
        let points = scale.points(samples, value);
        let drawn = format!(r#"<polyline class="line {class}" points="{points}"/>"#);
        line(&mut body, &drawn);
        let (x, end) = (
            LEFT + 110.0 * f64::from(column),
            LEFT + 24.0 + 110.0 * f64::from(column),
        );
        let key = format!(r#"<line class="line {class}" x1="{x}" y1="24" x2="{end}" y2="24"/>"#);
        line(&mut body, &key);
        let x = end + 6.0;
        line(&mut body, &format!(r#"<text x="{x}" y="28">{name}</text>"#));
    }
    let key = LEFT + 330.0;
    line(
        &mut body,
        &format!(r#"<rect class="outage" x="{key}" y="17" width="24" height="14"/>"#),
    );
    let key = key + 30.0;
    line(
        &mut body,
        &format!(r#"<text x="{key}" y="28">the Event Log API is down</text>"#),
    );
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <title>An outage without a loss</title>\n\
         <desc>Of {} accepted events, {} are delivered at the end, and {} are lost.</desc>\n\
         <style>{STYLE}</style>\n\
         <rect class=\"ground\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n{body}</svg>\n",
        last.accepted, last.delivered, last.lost
    )
}

fn line(body: &mut String, text: &str) {
    body.push_str(text);
    body.push('\n');
}

/// From seconds and events to the picture.
struct Scale {
    seconds: f64,
    events: f64,
}

impl Scale {
    fn x(&self, at: Duration) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * at.as_secs_f64() / self.seconds
    }

    fn y(&self, events: f64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * events / self.events
    }

    fn draw_axes(&self, body: &mut String) {
        let (left, right) = (LEFT, WIDTH - RIGHT);
        for events in marks(self.events) {
            let y = self.y(events);
            let grid =
                format!(r#"<line class="grid" x1="{left}" y1="{y:.1}" x2="{right}" y2="{y:.1}"/>"#);
            line(body, &grid);
            let (x, y) = (LEFT - 8.0, y + 4.0);
            let text = format!(r#"<text x="{x}" y="{y:.1}" text-anchor="end">{events}</text>"#);
            line(body, &text);
        }
        for seconds in marks(self.seconds) {
            let (x, y) = (
                self.x(Duration::from_secs_f64(seconds)),
                HEIGHT - BOTTOM + 18.0,
            );
            let text = format!(r#"<text x="{x:.1}" y="{y}" text-anchor="middle">{seconds}</text>"#);
            line(body, &text);
        }
        let (x, y) = (WIDTH - RIGHT, HEIGHT - 12.0);
        line(
            body,
            &format!(r#"<text x="{x}" y="{y}" text-anchor="end">seconds</text>"#),
        );
        line(body, r#"<text x="12" y="28">events</text>"#);
    }

    /// The points of a line. Of equal values in a row the first and the last are enough.
    fn points(&self, samples: &[OutageSample], value: fn(&OutageSample) -> i64) -> String {
        let mut points = String::new();
        for (index, sample) in samples.iter().enumerate() {
            let here = value(sample);
            let is_same = |other: Option<&OutageSample>| other.map(value) == Some(here);
            let before = index.checked_sub(1).and_then(|index| samples.get(index));
            if is_same(before) && is_same(samples.get(index + 1)) {
                continue;
            }
            let (x, y) = (self.x(sample.at), self.y(here as f64));
            // Writing to a text cannot fail.
            write!(points, "{x:.1},{y:.1} ").ok();
        }
        points.trim_end().to_owned()
    }
}

/// The spans in which the API was down.
fn outages(samples: &[OutageSample]) -> Vec<(Duration, Duration)> {
    let mut outages: Vec<(Duration, Duration)> = Vec::new();
    let mut was_up = false;
    let mut was_ever_up = false;
    for sample in samples {
        match (was_up, sample.is_api_up) {
            (true, false) => outages.push((sample.at, sample.at)),
            // Before it was started for the first time nothing was out.
            (false, _) if was_ever_up => {
                if let Some((_, until)) = outages.last_mut() {
                    *until = sample.at;
                }
            }
            (_, _) => {}
        }
        was_up = sample.is_api_up;
        was_ever_up |= was_up;
    }
    outages
}

/// Round numbers from 0 to `most`, a few of them.
fn marks(most: f64) -> Vec<f64> {
    let step = step(most);
    let mut marks = Vec::new();
    let mut mark = 0.0;
    while mark <= most {
        marks.push(mark);
        mark += step;
    }
    marks
}

/// The next mark above `most`, so that a line never touches the upper edge.
fn ceiling(most: f64) -> f64 {
    let step = step(most);
    ((most / step).floor() + 1.0) * step
}

/// The least of 1, 2, 5, 10, 20, 50 … that leaves few marks.
fn step(most: f64) -> f64 {
    let mut power = 1.0;
    loop {
        for step in [power, 2.0 * power, 5.0 * power] {
            if most / step <= MARKS {
                return step;
            }
        }
        power *= 10.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(s: u64, is_api_up: bool, numbers: (i64, i64, i64)) -> OutageSample {
        OutageSample {
            at: Duration::from_secs(s),
            is_api_up,
            accepted: numbers.0,
            delivered: numbers.1,
            on_disk: numbers.2,
            ..OutageSample::default()
        }
    }

    fn story() -> Vec<OutageSample> {
        vec![
            sample(0, false, (0, 0, 0)),
            sample(1, true, (0, 0, 0)),
            sample(8, true, (112, 112, 0)),
            sample(9, false, (112, 112, 0)),
            sample(10, false, (187, 112, 75)),
            sample(17, false, (187, 112, 75)),
            sample(18, true, (187, 112, 75)),
            sample(40, true, (187, 187, 0)),
        ]
    }

    /// Whether every element is closed in its turn, and nothing stands in a text that has to be escaped.
    fn is_well_formed(xml: &str) -> bool {
        let mut open = Vec::new();
        for part in xml.split_inclusive('>') {
            let Some((text, tag)) = part.split_once('<') else {
                return part.trim().is_empty() && open.is_empty();
            };
            let Some(tag) = tag.strip_suffix('>') else {
                return false;
            };
            if text.contains('&') || tag.contains(['<', '&']) || tag.matches('"').count() % 2 == 1 {
                return false;
            }
            match tag.strip_prefix('/') {
                Some(name) if open.pop() == Some(name) => {}
                Some(_) => return false,
                None if tag.ends_with('/') => {}
                None => open.extend(tag.split(' ').next()),
            }
        }
        open.is_empty()
    }

    #[test]
    fn the_chart_is_valid_and_says_what_happened() {
        let svg = chart(
            &story(),
            &[
                (Duration::ZERO, "setup"),
                (Duration::from_secs(9), "outage"),
                (Duration::from_secs(39), "summary"),
            ],
        );
        assert!(!svg.contains(">summary<"), "it has no room: {svg}");
        assert!(is_well_formed(&svg), "{svg}");
        assert!(!is_well_formed(&svg.replacen("</text>", "", 1)));
        assert!(
            svg.contains("Of 187 accepted events, 187 are delivered at the end, and 0 are lost.")
        );
        assert_eq!(svg.matches("<polyline").count(), 3);
        for text in [
            ">setup<",
            ">outage<",
            ">150<",
            ">40<",
            ">seconds<",
            ">events<",
            "dark",
        ] {
            assert!(svg.contains(text), "{text} in {svg}");
        }
        // The outage, and its key.
        assert_eq!(svg.matches(r#"<rect class="outage""#).count(), 2);
    }

    #[test]
    fn an_outage_is_from_the_stop_to_the_start() {
        let seconds = |s| Duration::from_secs(s);
        assert_eq!(outages(&story()), [(seconds(9), seconds(18))]);
        assert_eq!(outages(&story()[..6]), [(seconds(9), seconds(17))]);
        assert!(outages(&story()[..3]).is_empty());
    }

    #[test]
    fn a_line_needs_no_points_within_equal_values() {
        let scale = Scale {
            seconds: 40.0,
            events: 200.0,
        };
        let points = scale.points(&story(), |sample| sample.on_disk);
        assert_eq!(points.split(' ').count(), 5);
        assert!(points.starts_with("60.0,350.0 "), "{points}");
        assert!(points.ends_with("840.0,350.0"), "{points}");
    }

    #[test]
    fn marks_are_few_and_round() {
        assert_eq!(marks(61.0), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
        assert_eq!(marks(3.5), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(
            (ceiling(187.0), ceiling(200.0), ceiling(1.0)),
            (200.0, 250.0, 2.0)
        );
        assert_eq!(chart(&[], &[]).matches("<polyline").count(), 3);
    }
}
