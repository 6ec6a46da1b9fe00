//! How far a long command is: on a terminal, once it has taken a second.

mod disk;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::report::is_drawable;
pub(crate) use disk::CountingDisk;

/// A command that is done by then shows nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it is drawn.
const EVERY: Duration = Duration::from_millis(100);

/// The things that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgressUnit {
    Bytes,
    Events,
}

impl ProgressUnit {
    fn style(self, has_total: bool) -> &'static str {
        match (self, has_total) {
            (Self::Bytes, true) => "{prefix} {wide_bar} {bytes} of {total_bytes}, {elapsed}",
            (Self::Bytes, false) => "{prefix} {spinner} {bytes} read, {elapsed}",
            (Self::Events, true) => "{prefix} {wide_bar} {pos} of {len}, {elapsed}",
            (Self::Events, false) => "{prefix} {spinner} {pos}, {elapsed}",
        }
    }
}

/// The numbers, which whoever does the work changes.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    done: AtomicU64,
    /// 0 where nobody knows.
    total: AtomicU64,
}

impl Counted {
    /// So much more is done.
    pub(crate) fn add(&self, more: u64) {
        self.done.fetch_add(more, Ordering::Relaxed);
    }

    /// So much there is to do.
    pub(crate) fn expect(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    /// So much is done, of so much.
    pub(crate) fn set(&self, done: u64, total: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    fn show(&self, bar: &ProgressBar, (unit, prefix): (ProgressUnit, &str)) {
        let (done, total) = (
            self.done.load(Ordering::Relaxed),
            self.total.load(Ordering::Relaxed),
        );
        if let Ok(style) = ProgressStyle::with_template(unit.style(total > 0)) {
            bar.set_style(style.progress_chars("━╸ "));
        }
        bar.set_prefix(prefix.to_owned());
        // Files may grow while they are read, and some are read twice.
        bar.set_length(total.max(done));
        bar.set_position(done);
        bar.tick();
    }
}

/// A line on standard error that says how far a command is. It goes with this value, before anything else is
/// written.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    counted: Arc<Counted>,
    end: Arc<(Mutex<bool>, Condvar)>,
    drawing: Option<JoinHandle<()>>,
}

impl ProgressLine {
    /// Begins it, where standard error is a terminal.
    pub(crate) fn begin(prefix: &'static str, unit: ProgressUnit) -> Self {
        let target = is_drawable().then(ProgressDrawTarget::stderr);
        Self::on(target, prefix, unit)
    }

    fn on(target: Option<ProgressDrawTarget>, prefix: &'static str, unit: ProgressUnit) -> Self {
        let counted = Arc::<Counted>::default();
        let end = Arc::<(Mutex<bool>, Condvar)>::default();
        let drawing = target.map(|target| {
            let (counted, end) = (Arc::clone(&counted), Arc::clone(&end));
            // A thread of its own: the work may hold up every other one.
            std::thread::spawn(move || draw(target, &counted, (unit, prefix), &end))
        });
        Self {
            counted,
            end,
            drawing,
        }
    }

    /// The numbers.
    pub(crate) fn counted(&self) -> &Arc<Counted> {
        &self.counted
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        let (ended, wake) = &*self.end;
        *ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        wake.notify_all();
        if let Some(drawing) = self.drawing.take()
            && drawing.join().is_err()
        {
            tracing::debug!("the thread that draws has panicked");
        }
    }
}

fn draw(
    target: ProgressDrawTarget,
    counted: &Counted,
    shown: (ProgressUnit, &str),
    (ended, wake): &(Mutex<bool>, Condvar),
) {
    let wait = |span| {
        let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = wake.wait_timeout_while(ended, span, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    };
    if wait(PATIENCE) {
        return;
    }
    let bar = ProgressBar::with_draw_target(None, target);
    loop {
        counted.show(&bar, shown);
        if wait(EVERY) {
            bar.finish_and_clear();
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use indicatif::TermLike;

    use super::*;

    /// A terminal that keeps all that was written to it.
    #[derive(Debug, Clone, Default)]
    struct Screen(Arc<Mutex<String>>);

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            80
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, line: &str) -> io::Result<()> {
            self.write_str(line)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn shown(work: impl FnOnce(&Counted, &Screen), unit: ProgressUnit) -> String {
        let screen = Screen::default();
        let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
        let progress = ProgressLine::on(Some(target), "replay", unit);
        work(progress.counted(), &screen);
        drop(progress);
        let written = screen.0.lock().unwrap();
        written.clone()
    }

    /// Waits until something is on the screen.
    fn until_drawn(screen: &Screen) {
        while screen.0.lock().unwrap().is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_long_command_says_how_far_it_is_and_a_short_one_nothing() {
        let long = shown(
            |counted, screen| {
                counted.set(7, 20);
                until_drawn(screen);
            },
            ProgressUnit::Events,
        );
        assert!(
            long.contains("replay") && long.contains("7 of 20"),
            "{long:?}"
        );
        let unknown = shown(
            |counted, screen| {
                counted.add(3 << 20);
                until_drawn(screen);
            },
            ProgressUnit::Bytes,
        );
        assert!(unknown.contains("3.00 MiB read"), "{unknown:?}");
        assert_eq!(
            shown(|counted, _| counted.set(1, 2), ProgressUnit::Events),
            ""
        );
    }
}
