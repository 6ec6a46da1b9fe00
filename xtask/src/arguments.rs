//! The request, read from the command line.
//!
//! Six commands with a handful of flags do not repay the compile time of an argument parser: every
//! clean checkout would wait for it.

/// The text of `cargo xtask help`.
pub(crate) const USAGE: &str = "\
usage: cargo xtask COMMAND

  services up|down|status          private PostgreSQL, Redis and Kafka on loopback
  test [--long] [--only PACKAGE]   the gate: fmt, clippy, tidy, doc, every test
  bench [NAME...] [--json] [--peers DIR]
                                   measure ours beside the reference; no name lists the benches.
                                   DIR has a run.sh that runs peers of the connector
  dist                             the binary for others: small, without build paths
  tidy                             layering, links, promises, error pages, names
  mutants [--minutes N] [--sample N] [--seed N] [--only PACKAGE] [--again]
                                   small mistakes that the tests must notice; before a release.
                                   Goes on where the last run ended; --again judges survivors anew

Set DATABASE_URL, REDIS_URL or KAFKA_BOOTSTRAP to use a server of your own.
With CI=true a skipped test fails the gate and services are stopped at its end.";

/// One run of xtask.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Services(ServicesAction),
    Test(TestOptions),
    Bench(BenchOptions),
    Dist,
    Tidy,
    Mutants(MutantsOptions),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ServicesAction {
    Up,
    Down,
    Status,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestOptions {
    /// Run the tests with `TIDEGATE_LONG=1`.
    pub(crate) long: bool,
    /// The packages to look at; empty means all of them.
    pub(crate) only: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct BenchOptions {
    pub(crate) names: Vec<String>,
    /// JSON lines instead of a table.
    pub(crate) json: bool,
    /// A folder with programs of others that do the same.
    pub(crate) peers: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MutantsOptions {
    /// After these no further mutant is begun.
    pub(crate) minutes: u64,
    /// How many mutants that compile are to be judged, over all packages and runs.
    pub(crate) sample: usize,
    pub(crate) seed: u64,
    /// The packages to look at; empty means all of them.
    pub(crate) only: Vec<String>,
    /// Judge once more what survived an earlier run: there may be a test now.
    pub(crate) again: bool,
}

impl Default for MutantsOptions {
    fn default() -> Self {
        Self {
            minutes: 40,
            sample: 150,
            seed: 1,
            only: Vec::new(),
            again: false,
        }
    }
}

/// Reads the arguments after the program's name.
pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let Some(command) = arguments.next() else {
        return Err("a command is missing".to_owned());
    };
    match command.as_str() {
        "help" | "--help" | "-h" => Ok(Command::Help),
        "services" => services(arguments),
        "test" => test(arguments),
        "bench" => bench(arguments),
        "dist" => nothing_more(arguments).map(|()| Command::Dist),
        "tidy" => nothing_more(arguments).map(|()| Command::Tidy),
        "mutants" => mutants(arguments),
        other => Err(format!("`{other}` is not a command")),
    }
}

fn services(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let action = match arguments.next().as_deref() {
        Some("up") => ServicesAction::Up,
        Some("down") => ServicesAction::Down,
        Some("status") => ServicesAction::Status,
        Some(other) => return Err(format!("services: `{other}` is none of up, down, status")),
        None => return Err("services: one of up, down, status is missing".to_owned()),
    };
    nothing_more(arguments).map(|()| Command::Services(action))
}

fn test(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut options = TestOptions::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--long" => options.long = true,
            "--only" => {
                options
                    .only
                    .push(arguments.next().ok_or("test: --only takes a package")?);
            }
            other => return Err(format!("test: `{other}` is not known")),
        }
    }
    Ok(Command::Test(options))
}

fn bench(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut options = BenchOptions::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => options.json = true,
            "--peers" => {
                let folder = arguments.next();
                options.peers = Some(folder.ok_or("bench: --peers takes a folder")?);
            }
            other if other.starts_with('-') => {
                return Err(format!("bench: `{other}` is not known"));
            }
            _ => options.names.push(argument),
        }
    }
    Ok(Command::Bench(options))
}

fn mutants(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut options = MutantsOptions::default();
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .ok_or(format!("mutants: {argument} takes a value"))
        };
        match argument.as_str() {
            "--minutes" => options.minutes = number(&value()?)?,
            "--sample" => options.sample = number(&value()?)?,
            "--seed" => options.seed = number(&value()?)?,
            "--only" => options.only.push(value()?),
            "--again" => options.again = true,
            other => return Err(format!("mutants: `{other}` is not known")),
        }
    }
    Ok(Command::Mutants(options))
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

fn nothing_more(mut arguments: impl Iterator<Item = String>) -> Result<(), String> {
    match arguments.next() {
        Some(extra) => Err(format!("`{extra}` is one argument too many")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn reads_every_command() {
        assert_eq!(
            parsed("services up"),
            Ok(Command::Services(ServicesAction::Up))
        );
        assert_eq!(parsed("tidy"), Ok(Command::Tidy));
        assert_eq!(parsed("dist"), Ok(Command::Dist));
        assert_eq!(
            parsed("test --long --only xtask"),
            Ok(Command::Test(TestOptions {
                long: true,
                only: vec!["xtask".to_owned()]
            }))
        );
        assert_eq!(
            parsed("bench log/append --json --peers there"),
            Ok(Command::Bench(BenchOptions {
                names: vec!["log/append".to_owned()],
                json: true,
                peers: Some("there".to_owned())
            }))
        );
        assert_eq!(
            parsed("mutants --seed 7 --only tidegate-core --again"),
            Ok(Command::Mutants(MutantsOptions {
                seed: 7,
                only: vec!["tidegate-core".to_owned()],
                again: true,
                ..MutantsOptions::default()
            }))
        );
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for line in [
            "",
            "deploy",
            "services",
            "services sideways",
            "test --only",
            "tidy now",
            "bench -x",
            "bench log --peers",
            "mutants --seed",
            "mutants --minutes soon",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
