//! `tidegate demo`.

mod outage;

use std::io::Write;
use std::time::Duration;

use tidegate_core::env::{Entropy, system};

use crate::args::{DemoArgs, Output};
use crate::demo::{
    AwaitStory, DemoFindings, DemoFrame, DemoVerdict, LogStory, OutageStory, OutboxStory,
    PoisonStory, QueueStory, RetryStory, Scene, equation, tell,
};
use crate::report::{ErrorReport, Exit, is_drawable, print};

/// Real time per frame on a terminal: the story takes about seven seconds.
const PACE: Duration = Duration::from_millis(45);

pub(crate) fn run(arguments: &DemoArgs, output: Output) -> Result<Exit, ErrorReport> {
    let name = arguments.name.as_str();
    if name == OutageStory::NAME {
        if arguments.seed.is_some() {
            return Err(unfit(
                "--seed",
                "retry, log, queue, outbox, poison and await",
            ));
        }
        return crate::on_tokio(outage::run(&arguments.outage, output));
    }
    let outage = &arguments.outage;
    let given = [
        ("--fast", outage.fast),
        ("--chart", outage.chart.is_some()),
        ("--keep", outage.keep.is_some()),
        ("--kill", outage.kill.is_some()),
    ];
    if let Some((option, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        return Err(unfit(option, OutageStory::NAME));
    }
    let seed = arguments
        .seed
        .unwrap_or_else(|| system::system_entropy().next_u64());
    match name {
        LogStory::NAME => play(LogStory::new(seed), output),
        AwaitStory::NAME => play(AwaitStory::new(seed)?, output),
        PoisonStory::NAME => play(PoisonStory::new(seed), output),
        QueueStory::NAME => play(QueueStory::new(seed)?, output),
        OutboxStory::NAME => play(OutboxStory::new(seed)?, output),
        _ => play(RetryStory::new(seed), output),
    }
}

fn unfit(option: &str, demos: &str) -> ErrorReport {
    let message = format!("{option} is an option of the demo {demos}");
    ErrorReport::new("usage.demo", message).with_exit(Exit::Usage)
}

fn play(scene: impl Scene, output: Output) -> Result<Exit, ErrorReport> {
    let verdict = match output {
        Output::Json => tell(scene, |_| {})?,
        Output::Table if is_drawable() => {
            let mut drawing = Drawing::new();
            tell(scene, |frame| drawing.draw(frame))?
        }
        Output::Table => {
            let mut lines = Lines::default();
            let verdict = tell(scene, |frame| lines.show(frame))?;
            lines.finish()?;
            verdict
        }
    };
    output.print(&verdict, || verdict_text(&verdict))?;
    Ok(Exit::Loss.unless(verdict.is_good()))
}

fn verdict_text(verdict: &DemoVerdict<impl DemoFindings>) -> String {
    let sign = match verdict.is_good() {
        true => "✓ the books balance",
        false => "✗ the books do NOT balance",
    };
    let (lines, again) = (verdict.lines().join("\n"), verdict.again());
    format!("\n{lines}\n{sign}   (same story again: {again})")
}

/// One line per phase, for logs and pipes: the books when the phase ended.
#[derive(Default)]
struct Lines {
    last: Option<(usize, String)>,
    /// Why the first line that could not be written was not; the story goes on without readers.
    failed: Option<ErrorReport>,
}

impl Lines {
    fn show(&mut self, frame: &DemoFrame) {
        let before = self.last.replace((frame.number, line(frame)));
        if let Some((number, last)) = before
            && number != frame.number
            && self.failed.is_none()
        {
            self.failed = print(&last).err();
        }
    }

    fn finish(self) -> Result<(), ErrorReport> {
        match (self.failed, self.last) {
            (Some(failed), _) => Err(failed),
            (None, Some((_, last))) => print(&last),
            (None, None) => Ok(()),
        }
    }
}

fn line(frame: &DemoFrame) -> String {
    format!(
        "phase {}/{} {:<9} {:>7}   {}   {}",
        frame.number,
        frame.phases,
        frame.phase,
        passed(frame.at),
        equation(&frame.account),
        frame.note
    )
}

/// A time of the story, in seconds, or in days where it is long.
fn passed(at: Duration) -> String {
    let seconds = at.as_secs_f64();
    match seconds < 86_400.0 {
        true => format!("{seconds:.1} s"),
        false => format!("{:.1} d", seconds / 86_400.0),
    }
}

/// The live picture: a bar per place, drawn over itself.
struct Drawing {
    /// Columns that a line may take. A line that wraps would not be drawn over.
    width: usize,
    lines: usize,
}

/// Width of the picture where there is room for it.
const MAX_WIDTH: usize = 76;

/// The columns of the terminal, less the last, in which some terminals wrap.
fn width() -> usize {
    let told = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse().ok());
    let asked = || comfy_table::Table::new().use_stderr().width();
    let columns = told.or_else(|| asked().map(usize::from));
    // A terminal that does not know its width says 0.
    let columns = columns.filter(|columns| *columns > 0);
    let columns = columns.unwrap_or(MAX_WIDTH + 1);
    columns.saturating_sub(1).clamp(1, MAX_WIDTH)
}

impl Drawing {
    fn new() -> Self {
        Self {
            width: width(),
            lines: 0,
        }
    }

    fn draw(&mut self, frame: &DemoFrame) {
        self.redraw(picture(frame, self.width));
        std::thread::sleep(PACE);
    }

    /// Draws these lines over those before.
    fn redraw(&mut self, text: Vec<String>) {
        let up = if self.lines == 0 {
            String::new()
        } else {
            format!("\x1b[{}A", self.lines)
        };
        self.lines = text.len();
        let mut stderr = std::io::stderr().lock();
        // Drawing is for the eye; a terminal that went away changes nothing of the story.
        write!(stderr, "{up}").ok();
        for line in text {
            writeln!(stderr, "\x1b[2K{line}").ok();
        }
    }
}

/// The lines of a frame, none of them wider than `width`.
fn picture(frame: &DemoFrame, width: usize) -> Vec<String> {
    let account = &frame.account;
    let mut lines = vec![format!(
        "phase {}/{} {:<9} {:>7}   {:<17}   accepted {}",
        frame.number,
        frame.phases,
        frame.phase,
        passed(frame.at),
        frame.note,
        account.accepted
    )];
    for (name, count) in account.places() {
        let label = format!("  {:<13} {count:>6}  ", name.replace('_', " "));
        let room = width.saturating_sub(label.chars().count());
        lines.push(format!("{label}{}", bar(count, account.accepted, room)));
    }
    let cut = |line: String| line.chars().take(width).collect();
    lines.into_iter().map(cut).collect()
}

/// A bar of at most `room` blocks. Anything that is not nothing shows at least one.
fn bar(count: i64, of: i64, room: usize) -> String {
    let room = i64::try_from(room).unwrap_or(i64::MAX);
    let width = count.saturating_mul(room).saturating_add(of - 1) / of.max(1);
    "█".repeat(usize::try_from(width.clamp(0, room)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let told = tell(RetryStory::new(7), |frame| {
            for width in [1, 20, 24, 25, 40, MAX_WIDTH] {
                for line in picture(frame, width) {
                    assert!(line.chars().count() <= width, "{width}: {line}");
                }
            }
        });
        assert!(told.is_ok());
    }

    #[test]
    fn a_bar_shows_its_share() {
        assert_eq!(bar(0, 100, 10), "");
        assert_eq!(bar(1, 3_600, 10), "█");
        assert_eq!(bar(50, 100, 10), "█████");
        assert_eq!(bar(100, 100, 10).chars().count(), 10);
        assert_eq!(bar(5, 0, 10).chars().count(), 10);
        assert_eq!(bar(5, 5, 0), "");
    }
}
