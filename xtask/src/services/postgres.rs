//! A private PostgreSQL cluster.
//!
//! `tidegate` is a superuser trusted on loopback, `tidegate_password` must know its password. The
//! server refuses to run as root, so root hands it to the user that the package made.

mod place;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::command::{find_program, output_of};
use crate::services::process::{Home, Launch};
use crate::services::server::{Server, Variables, connect};

/// The password of the role `tidegate_password`; it guards test data on loopback only.
const PASSWORD: &str = "open-sesame";

/// Passwords are asked of one role and of nobody else.
const HBA: &str = "\
# TYPE  DATABASE     USER               ADDRESS       METHOD
host    all          tidegate_password  127.0.0.1/32  scram-sha-256
host    replication  tidegate_password  127.0.0.1/32  scram-sha-256
host    all          all                127.0.0.1/32  trust
host    replication  all                127.0.0.1/32  trust
";

/// The one PostgreSQL of this checkout.
#[derive(Debug)]
pub(crate) struct Postgres;

impl Server for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn owner_variable(&self) -> &'static str {
        "DATABASE_URL"
    }

    fn missing_packages(&self) -> Vec<&'static str> {
        if programs().is_some() {
            vec![]
        } else {
            vec!["postgresql"]
        }
    }

    fn fetch(&self, _: &Home) -> Result<()> {
        programs().context("PostgreSQL's initdb is not installed")?;
        place::server_user()?;
        Ok(())
    }

    fn prepare(&self, home: &Home) -> Result<()> {
        let data = place::data_directory(home)?;
        if data.join("PG_VERSION").is_file() {
            return Ok(());
        }
        // A half-made cluster would look like a whole one, so it gets its name only at the end.
        let half_made = data.with_extension("new");
        place::make_empty(&half_made)?;
        output_of(
            as_server("initdb")?
                .args([
                    "-A",
                    "trust",
                    "-U",
                    "tidegate",
                    "-E",
                    "UTF8",
                    "--no-sync",
                    "-D",
                ])
                .arg(&half_made),
        )?;
        fs::write(half_made.join("pg_hba.conf"), HBA).context("could not write pg_hba.conf")?;
        fs::rename(&half_made, &data).context("could not put the new cluster in place")
    }

    fn port_count(&self) -> usize {
        1
    }

    fn launch(&self, home: &Home, ports: &[u16]) -> Result<Launch> {
        let data = place::data_directory(home)?;
        let mut arguments = vec!["-D".into(), data.into_os_string(), "-p".into()];
        arguments.push(ports[0].to_string().into());
        for setting in [
            "listen_addresses=127.0.0.1",
            // A socket's path has room for about a hundred bytes, and a checkout may stand deeper.
            "unix_socket_directories=",
            "max_connections=200",
            "shared_preload_libraries=pg_stat_statements",
            // Speed and durability are judged on this server.
            "fsync=on",
            "synchronous_commit=on",
        ] {
            arguments.extend(["-c".into(), setting.into()]);
        }
        let program = programs()
            .context("PostgreSQL is not installed")?
            .join("postgres");
        Ok(Launch {
            program,
            arguments,
            user: place::server_user()?,
        })
    }

    fn probe(&self, ports: &[u16]) -> Result<()> {
        let mut stream = connect(ports[0])?;
        stream.write_all(&startup_message())?;
        let mut kind = [0];
        stream.read_exact(&mut kind)?;
        match kind[0] {
            b'R' => {
                // Hanging up in the middle would leave a complaint in the log for every probe.
                stream.write_all(b"X\0\0\0\x04")?;
                stream.shutdown(Shutdown::Write)?;
                stream.read_to_end(&mut Vec::new())?;
                Ok(())
            }
            // Sent while the server starts, recovers or stops.
            b'E' => bail!("answers, but is not ready"),
            other => bail!("does not speak the PostgreSQL protocol ({other:#x})"),
        }
    }

    fn settle(&self, ports: &[u16]) -> Result<()> {
        let script = format!(
            "SELECT 'CREATE ROLE tidegate_password LOGIN CREATEDB'
              WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'tidegate_password') \\gexec
             SET password_encryption = 'scram-sha-256';
             ALTER ROLE tidegate_password PASSWORD '{PASSWORD}';
             SELECT 'CREATE DATABASE tidegate'
              WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'tidegate') \\gexec
             GRANT ALL ON DATABASE tidegate TO tidegate_password;
             \\connect tidegate
             CREATE EXTENSION IF NOT EXISTS pg_stat_statements;"
        );
        let script_file =
            std::env::temp_dir().join(format!("tidegate-settle-{}.sql", std::process::id()));
        fs::write(&script_file, script).context("could not write the set-up script")?;
        let result = output_of(
            Command::new(
                programs()
                    .context("PostgreSQL is not installed")?
                    .join("psql"),
            )
            .args([
                "-X",
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
                "-h",
                "127.0.0.1",
                "-U",
                "tidegate",
            ])
            .args(["-p", &ports[0].to_string(), "-d", "postgres", "-f"])
            .arg(&script_file),
        );
        fs::remove_file(&script_file).context("could not remove the set-up script")?;
        result.map(drop)
    }

    fn stop_signal(&self) -> Signal {
        // A fast shutdown: open sessions are ended rather than waited for.
        Signal::INT
    }

    fn variables(&self, _: &Home, ports: &[u16]) -> Variables {
        let port = ports[0];
        vec![
            (
                "DATABASE_URL",
                format!("postgres://tidegate@127.0.0.1:{port}/tidegate"),
            ),
            (
                "DATABASE_PASSWORD_URL",
                format!("postgres://tidegate_password:{PASSWORD}@127.0.0.1:{port}/tidegate"),
            ),
        ]
    }

    fn discard(&self, home: &Home) -> Result<()> {
        place::discard(home)
    }
}

/// The directory with the newest server's programs.
///
/// Debian keeps `initdb` and `postgres` off the search path, one directory per major version.
fn programs() -> Option<PathBuf> {
    let has_all = |directory: &Path| {
        ["initdb", "postgres", "psql"]
            .iter()
            .all(|name| directory.join(name).is_file())
    };
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let major = entry.file_name().to_str()?.parse().ok()?;
            Some((major, entry.path().join("bin")))
        })
        .filter(|(_, directory)| has_all(directory))
        .collect();
    versions.sort();
    if let Some((_, directory)) = versions.pop() {
        return Some(directory);
    }
    let directory = find_program("initdb")?.parent()?.to_owned();
    has_all(&directory).then_some(directory)
}

/// One of the server's programs, called as the user the server runs as.
fn as_server(program: &str) -> Result<Command> {
    let mut command = Command::new(
        programs()
            .context("PostgreSQL is not installed")?
            .join(program),
    );
    command.current_dir("/").env("LC_ALL", "C.UTF-8");
    if let Some(user) = place::server_user()? {
        command.uid(user.uid).gid(user.gid);
    }
    Ok(command)
}

/// The first message of a session of `tidegate` in the database that always exists.
fn startup_message() -> Vec<u8> {
    let mut body = 196_608_u32.to_be_bytes().to_vec();
    body.extend(b"user\0tidegate\0database\0postgres\0\0");
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
    let mut message = length.to_be_bytes().to_vec();
    message.extend(body);
    message
}
