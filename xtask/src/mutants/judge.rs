//! Puts one mistake in and asks the tests.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;

use crate::command::complaints;
use crate::mutants::list::Mutant;
use crate::mutants::results::{Judgment, Verdict};
use crate::mutants::run::{End, limited, until_failure};
use crate::mutants::scope::{Scope, Stage};
use crate::workspace::Workspace;

/// Longest run of a test program without a mistake in it.
const LONGEST: Duration = Duration::from_secs(10 * 60);
/// A run with a mistake may take this many times as long as one without, and [`GRACE`] more.
const TIMES: u32 = 3;
const GRACE: Duration = Duration::from_secs(20);

/// Where mistakes are put in, built and run.
#[derive(Debug)]
pub(crate) struct Place {
    cargo: Command,
    pub(crate) tree: PathBuf,
    build: PathBuf,
    /// The directory for files of killed tests; emptied after each.
    scratch: PathBuf,
    log: PathBuf,
}

impl Place {
    pub(crate) fn new(workspace: &Workspace, home: &Path) -> Self {
        Self {
            cargo: workspace.cargo(),
            tree: home.join("tree"),
            build: home.join("build"),
            scratch: home.join("scratch"),
            log: home.join("build.log"),
        }
    }

    /// Builds a test program; `None` if the sources do not compile.
    fn build(&self, scope: &Scope, stage: &Stage) -> Result<Option<PathBuf>> {
        let log = File::create(&self.log).context("could not create a log")?;
        let mut child = Command::new(self.cargo.get_program())
            .current_dir(&self.tree)
            .args(["test", "--no-run", "--profile", "mutants"])
            .args(["--message-format", "json-render-diagnostics"])
            .args(["--package", scope.package])
            .args(stage.target)
            .env("CARGO_TARGET_DIR", &self.build)
            // A lint that refuses the mistake would say nothing about the tests.
            .env("RUSTFLAGS", "--cap-lints=warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("could not start cargo")?;
        let output = child.stdout.take().context("cargo has no output")?;
        let mut program = None;
        for message in Message::parse_stream(BufReader::new(output)) {
            if let Message::CompilerArtifact(artifact) =
                message.context("could not read from cargo")?
                && artifact.profile.test
                && let Some(executable) = artifact.executable
            {
                program = Some(executable.into_std_path_buf());
            }
        }
        if !child.wait().context("could not wait for cargo")?.success() {
            let said = complaints(&self.log, 40);
            if said.contains("could not compile") {
                return Ok(None);
            }
            bail!("cargo failed, and not because of a mistake: {said}");
        }
        program
            .map(Some)
            .with_context(|| format!("cargo built no test program for {}", stage.target.join(" ")))
    }

    fn run(&self, scope: &Scope, stage: &Stage, program: &Path, limit: Duration) -> Result<End> {
        self.empty_scratch()?;
        let name = scope.package.trim_start_matches("tidegate-");
        let directory = self.tree.join("crates").join(name);
        let mut command = limited(program);
        for test in stage.skip {
            command.args(["--skip", test]);
        }
        command
            .current_dir(&directory)
            .env("CARGO_MANIFEST_DIR", &directory)
            .env("CARGO_PKG_NAME", scope.package)
            .env("TMPDIR", &self.scratch)
            // Neither may write beside the sources what it found wrong with a mistake.
            .env("INSTA_UPDATE", "no")
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
            .env_remove("TIDEGATE_SEED")
            .env_remove("TIDEGATE_LONG");
        let end = until_failure(&mut command, limit);
        self.empty_scratch()?;
        end
    }

    fn empty_scratch(&self) -> Result<()> {
        // A process that was killed a moment ago may still be writing.
        let mut tries = 0;
        while self.scratch.is_dir()
            && let Err(error) = fs::remove_dir_all(&self.scratch)
        {
            tries += 1;
            if tries == 10 {
                return Err(error).context("could not empty the scratch directory");
            }
        }
        fs::create_dir_all(&self.scratch).context("could not create the scratch directory")
    }
}

/// Judges the mutants of one package.
#[derive(Debug)]
pub(crate) struct Judge<'a> {
    place: &'a Place,
    scope: &'static Scope,
    /// Of each stage.
    limits: Vec<Duration>,
}

impl<'a> Judge<'a> {
    /// Runs the tests as they are: they must pass, and their time sets the limit of what follows.
    pub(crate) fn begin(place: &'a Place, scope: &'static Scope) -> Result<Self> {
        let mut limits = Vec::new();
        for stage in scope.stages {
            let name = format!("{} {}", scope.package, stage.target.join(" "));
            let begun = Instant::now();
            let Some(program) = place.build(scope, stage)? else {
                bail!("{name} does not compile:\n{}", complaints(&place.log, 40));
            };
            let built = begun.elapsed();
            let begun = Instant::now();
            match place.run(scope, stage, &program, LONGEST)? {
                End::Passed => {}
                End::Failed(test) => bail!("{name} fails without a mistake: {test}"),
                End::TimedOut => bail!("{name} takes more than {} s", LONGEST.as_secs()),
            }
            let ran = begun.elapsed();
            println!(
                "{name}: built in {:.1} s, passes in {:.1} s",
                built.as_secs_f64(),
                ran.as_secs_f64()
            );
            limits.push(ran * TIMES + GRACE);
        }
        Ok(Self {
            place,
            scope,
            limits,
        })
    }

    /// Puts `mutant` in, asks the tests, and takes it out again.
    pub(crate) fn judge(&self, mutant: &Mutant) -> Result<Judgment> {
        let begun = Instant::now();
        let file = self.place.tree.join(&mutant.file);
        let original = mutant.original(&self.place.tree)?;
        fs::write(&file, mutant.apply(&original)?).context("could not put a mistake in")?;
        let outcome = self.ask();
        fs::write(&file, original).context("could not take a mistake out")?;
        let (verdict, by) = outcome?;
        Ok(Judgment {
            verdict,
            by,
            seconds: (begun.elapsed().as_secs_f64() * 10.0).round() / 10.0,
        })
    }

    fn ask(&self) -> Result<(Verdict, String)> {
        for (stage, limit) in self.scope.stages.iter().zip(&self.limits) {
            let Some(program) = self.place.build(self.scope, stage)? else {
                return Ok((Verdict::Unviable, String::new()));
            };
            match self.place.run(self.scope, stage, &program, *limit)? {
                End::Passed => {}
                End::Failed(test) => return Ok((Verdict::Caught, test)),
                End::TimedOut => return Ok((Verdict::TimedOut, stage.target.join(" "))),
            }
        }
        Ok((Verdict::Survived, String::new()))
    }
}
