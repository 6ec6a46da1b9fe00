//! `tidegate demo`.

use std::io::Write;
use std::time::Duration;

use tidegate_core::env::{Entropy, system};

use crate::args::{Demo, Output};
use crate::demo::{Frame, Story, Verdict};
use crate::report::{Exit, is_drawable, print, print_json};
use crate::table;

/// Real time per frame on a terminal: the story takes about seven seconds.
const PACE: Duration = Duration::from_millis(45);

pub(crate) fn run(arguments: &Demo, output: Output) -> Exit {
    let seed = arguments
        .seed
        .unwrap_or_else(|| system::system_entropy().next_u64());
    let verdict = match output {
        Output::Json => Story::new(seed).run(|_| {}),
        Output::Table if is_drawable() => {
            let mut drawing = Drawing::default();
            Story::new(seed).run(|frame| drawing.draw(frame))
        }
        Output::Table => {
            let mut lines = Lines::default();
            let verdict = Story::new(seed).run(|frame| lines.show(frame));
            lines.finish();
            verdict
        }
    };
    match output {
        Output::Json => print_json(&verdict),
        Output::Table => print_verdict(&verdict),
    }
    if verdict.is_good() {
        Exit::Ok
    } else {
        Exit::Loss
    }
}

fn print_verdict(verdict: &Verdict) {
    print("");
    print(&table::equation(&verdict.ledger));
    print(&format!(
        "duplicates {}   lost {}   calls {}   breaker opened {} times",
        verdict.duplicates,
        verdict.ledger.lost.total(),
        verdict.attempts,
        verdict.breaker_openings
    ));
    for (why, count) in &verdict.dead_letters {
        print(&format!("dead letters  {count:>4}  {why}"));
    }
    let sign = if verdict.is_good() {
        "✓ the books balance"
    } else {
        "✗ the books do NOT balance"
    };
    print(&format!(
        "{sign}   (same story again: tidegate demo --seed {})",
        verdict.seed
    ));
}

/// One line per phase, for logs and pipes: what was true when the phase ended.
#[derive(Default)]
struct Lines {
    last: Option<(usize, String)>,
}

impl Lines {
    fn show(&mut self, frame: &Frame) {
        let before = self.last.replace((frame.number, line(frame)));
        if let Some((number, last)) = before
            && number != frame.number
        {
            print(&last);
        }
    }

    fn finish(self) {
        if let Some((_, last)) = self.last {
            print(&last);
        }
    }
}

fn line(frame: &Frame) -> String {
    format!(
        "phase {}/{} {:<9} {:>5.1} s   {}   breaker {}",
        frame.number,
        Frame::PHASES,
        frame.phase,
        frame.at.as_secs_f64(),
        table::equation(&frame.account),
        frame.breaker
    )
}

/// The live picture: a bar per place, drawn over itself.
#[derive(Default)]
struct Drawing {
    lines: usize,
}

/// Width of the longest bar.
const BAR: i64 = 48;

impl Drawing {
    fn draw(&mut self, frame: &Frame) {
        let account = &frame.account;
        let mut text = vec![format!(
            "phase {}/{} {:<9} {:>5.1} s   breaker {:<9}   accepted {}",
            frame.number,
            Frame::PHASES,
            frame.phase,
            frame.at.as_secs_f64(),
            frame.breaker,
            account.accepted
        )];
        for (name, count) in account.places() {
            // Anything that is not nothing shows at least one block.
            let width = (count * BAR + account.accepted - 1) / account.accepted.max(1);
            let bar = "█".repeat(usize::try_from(width.clamp(0, BAR)).unwrap_or(0));
            text.push(format!(
                "  {:<13} {count:>6}  {bar}",
                name.replace('_', " ")
            ));
        }
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
        drop(stderr);
        std::thread::sleep(PACE);
    }
}
