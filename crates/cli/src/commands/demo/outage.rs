//! `tidegate demo outage`: how it is shown.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::{Drawing, bar};
use crate::args::{OutageArgs, Output};
use crate::demo::{OutageFrame, OutagePlan, OutageSample, OutageStory};
use crate::report::{ErrorReport, Exit, is_drawable, print, say};
use crate::signals::Signals;
use crate::table;

/// One step of the traffic each, from none to the most.
const STEPS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub(super) async fn run(arguments: &OutageArgs, output: Output) -> Result<Exit, ErrorReport> {
    let mut signals = Signals::register()?;
    let chart = arguments.chart.as_deref().map(ChartFile::open);
    let chart = chart.transpose()?;
    let mut plan = match arguments.fast {
        true => OutagePlan::fast(),
        false => OutagePlan::usual(),
    };
    plan.kill = arguments.kill;
    let mut screen = match output {
        Output::Json => Screen::None,
        Output::Table if is_drawable() => Screen::Picture(Drawing::new()),
        Output::Table => Screen::Lines(None),
    };
    let keep = arguments.keep.as_deref();
    let story = OutageStory::open(plan, keep, |frame| screen.show(frame))?;
    // A signal drops the story, and with it the API, the service and the directory.
    let verdict = tokio::select! {
        biased;
        () = signals.next() => return Err(ErrorReport::new("stopped", "the demo was stopped by a signal")),
        verdict = story.tell() => verdict?,
    };
    if let Some(chart) = chart {
        chart.write(&verdict.chart())?;
    }
    output.print(&verdict, || verdict.text())?;
    Ok(Exit::Loss.unless(verdict.is_good()))
}

/// The place where the demo is shown.
enum Screen {
    None,
    Picture(Drawing),
    /// Lines for logs and pipes, and the last one.
    Lines(Option<ShownLine>),
}

/// The last line, as far as it decides whether another one follows.
struct ShownLine {
    number: usize,
    second: u64,
    sample: OutageSample,
}

impl Screen {
    fn show(&mut self, frame: &OutageFrame<'_>) -> Result<(), ErrorReport> {
        match self {
            Self::None => Ok(()),
            Self::Picture(drawing) => {
                drawing.redraw(picture(frame, drawing.width));
                Ok(())
            }
            Self::Lines(last) => {
                if !is_news(frame, last.as_ref()) {
                    return Ok(());
                }
                *last = Some(ShownLine {
                    number: frame.number,
                    second: frame.sample.at.as_secs(),
                    sample: frame.sample.clone(),
                });
                print(&line(frame))
            }
        }
    }
}

/// Whether something began or ended, or another second has passed in which a number changed.
fn is_news(frame: &OutageFrame<'_>, last: Option<&ShownLine>) -> bool {
    let Some(last) = last else {
        return true;
    };
    let (sample, before) = (frame.sample, &last.sample);
    let of = |sample: &OutageSample| (sample.accepted, sample.delivered, sample.on_disk);
    frame.number != last.number
        || sample.is_api_up != before.is_api_up
        || sample.is_breaker_open != before.is_breaker_open
        || (sample.at.as_secs() != last.second && of(sample) != of(before))
}

fn line(frame: &OutageFrame<'_>) -> String {
    let sample = frame.sample;
    format!(
        "{}   accepted {}   delivered {}   in memory {}   on disk {} ({})   replayed {}   lost {}",
        heading(frame),
        sample.accepted,
        sample.delivered,
        sample.in_memory,
        sample.on_disk,
        table::size(sample.spill_bytes),
        sample.replayed,
        sample.lost
    )
}

fn heading(frame: &OutageFrame<'_>) -> String {
    let sample = frame.sample;
    format!(
        "phase {}/{} {:<8} {:>5.1} s   API {:<4}   breaker {:<6}",
        frame.number,
        frame.phases,
        frame.phase,
        sample.at.as_secs_f64(),
        if sample.is_api_up { "up" } else { "DOWN" },
        if sample.is_breaker_open {
            "OPEN"
        } else {
            "CLOSED"
        },
    )
}

/// The lines of a frame, none of them wider than `width`.
fn picture(frame: &OutageFrame<'_>, width: usize) -> Vec<String> {
    let sample = frame.sample;
    let row = |name: &str, count: i64, note: String| {
        let label = format!("  {name:<10} {count:>6}  ");
        let room = width.saturating_sub(label.chars().count() + 14);
        let bar = bar(count, sample.accepted, room);
        format!("{label}{note:<12}  {bar}")
    };
    let traffic = frame.traffic.last().copied().unwrap_or_default();
    let lines = [
        heading(frame),
        format!(
            "  {:<10} {traffic:>6}  {:<12}  {}",
            "traffic",
            "events/s",
            spark(&frame.traffic)
        ),
        row("accepted", sample.accepted, String::new()),
        row("delivered", sample.delivered, String::new()),
        row(
            "queue",
            i64::try_from(sample.queue_depth).unwrap_or(i64::MAX),
            String::new(),
        ),
        row("on disk", sample.on_disk, table::size(sample.spill_bytes)),
        row(
            "replayed",
            i64::try_from(sample.replayed).unwrap_or(i64::MAX),
            format!("{} events/s", frame.replay_rate),
        ),
        row("lost", sample.lost, String::new()),
    ];
    let cut = |line: String| line.chars().take(width).collect();
    lines.into_iter().map(cut).collect()
}

/// Numbers as a row of columns, as high as their share of the highest.
fn spark(numbers: &[i64]) -> String {
    let most = numbers.iter().copied().max().unwrap_or(0).max(1);
    let steps = i64::try_from(STEPS.len() - 1).unwrap_or(1);
    let step = |number: &i64| {
        let step = (number.clamp(&0, &most) * steps + most - 1) / most;
        usize::try_from(step).ok().and_then(|step| STEPS.get(step))
    };
    numbers.iter().filter_map(step).collect()
}

/// The file of the chart. It is made before the demo, so that a wrong path does not cost a minute, and is
/// put in its place after it.
struct ChartFile {
    path: PathBuf,
    file: NamedTempFile,
}

impl ChartFile {
    fn open(path: &Path) -> Result<Self, ErrorReport> {
        let parent = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            Some(_) | None => Path::new("."),
        };
        let made = tempfile::Builder::new()
            .prefix(".chart-")
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(parent);
        let file = made.map_err(|error| unwritten(path, &error))?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    fn write(mut self, svg: &str) -> Result<(), ErrorReport> {
        let written = self.file.write_all(svg.as_bytes());
        written.map_err(|error| unwritten(&self.path, &error))?;
        let kept = self.file.persist(&self.path);
        kept.map_err(|error| unwritten(&self.path, &error.error))?;
        say(&format!("chart: {}", self.path.display()));
        Ok(())
    }
}

fn unwritten(path: &Path, error: &std::io::Error) -> ErrorReport {
    let doing = format!("cannot write the chart `{}`", path.display());
    ErrorReport::of("output.failed", &doing, error)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::MAX_WIDTH;
    use super::*;

    fn sample(ms: u64) -> OutageSample {
        OutageSample {
            at: Duration::from_millis(ms),
            is_api_up: true,
            accepted: 187,
            delivered: 112,
            on_disk: 75,
            spill_bytes: 34_918,
            replayed: 3,
            ..OutageSample::default()
        }
    }

    fn frame(sample: &OutageSample, number: usize) -> OutageFrame<'_> {
        OutageFrame {
            phase: "outage",
            number,
            phases: 6,
            sample,
            traffic: (0..30).collect(),
            replay_rate: 3,
        }
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let sample = sample(12_400);
        for width in [1, 20, 33, 40, MAX_WIDTH] {
            for line in picture(&frame(&sample, 3), width) {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
        let drawn = picture(&frame(&sample, 3), MAX_WIDTH).join("\n");
        for text in [
            "phase 3/6 outage",
            "breaker CLOSED",
            "34.1 KiB",
            "3 events/s",
            "█",
        ] {
            assert!(drawn.contains(text), "{text} in {drawn}");
        }
    }

    #[test]
    fn a_line_follows_a_change_and_at_most_one_each_second_follows_a_number() {
        let shown = |sample: OutageSample| ShownLine {
            number: 3,
            second: sample.at.as_secs(),
            sample,
        };
        let last = shown(sample(12_100));
        let is_news = |sample: &OutageSample, number| is_news(&frame(sample, number), Some(&last));
        assert!(!is_news(&sample(12_900), 3));
        assert!(!is_news(&sample(14_900), 3));
        assert!(is_news(&sample(12_200), 4));
        let changed = |ms, change: fn(&mut OutageSample)| {
            let mut changed = sample(ms);
            change(&mut changed);
            changed
        };
        assert!(is_news(
            &changed(12_200, |sample| sample.is_api_up = false),
            3
        ));
        assert!(is_news(
            &changed(12_200, |sample| sample.is_breaker_open = true),
            3
        ));
        assert!(!is_news(
            &changed(12_200, |sample| sample.delivered += 1),
            3
        ));
        assert!(is_news(&changed(13_000, |sample| sample.delivered += 1), 3));
    }

    #[test]
    fn columns_are_readable() {
        assert_eq!(spark(&[0, 1, 50, 100]), " ▁▄█");
        assert_eq!(
            (spark(&[]), spark(&[0, 0])),
            (String::new(), "  ".to_owned())
        );
    }
}
