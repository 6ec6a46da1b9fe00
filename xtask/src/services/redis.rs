//! Redis with an append-only file, so that a killed server comes back with its data.

use std::fs;
use std::io::{Read as _, Write as _};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::command::find_program;
use crate::services::process::{Home, Launch};
use crate::services::server::{Server, Variables, connect};

/// The one Redis of this checkout.
#[derive(Debug)]
pub(crate) struct Redis;

impl Server for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn owner_variable(&self) -> &'static str {
        "REDIS_URL"
    }

    fn missing_packages(&self) -> Vec<&'static str> {
        if find_program("redis-server").is_some() {
            vec![]
        } else {
            vec!["redis-server"]
        }
    }

    fn fetch(&self, _: &Home) -> Result<()> {
        find_program("redis-server").context("redis-server is not installed")?;
        Ok(())
    }

    fn prepare(&self, home: &Home) -> Result<()> {
        fs::create_dir_all(home.path("data")).context("could not create Redis' directory")
    }

    fn port_count(&self) -> usize {
        1
    }

    fn launch(&self, home: &Home, ports: &[u16]) -> Result<Launch> {
        let program = find_program("redis-server").context("redis-server is not installed")?;
        let port = ports[0].to_string();
        let mut arguments: Vec<_> = [
            "--port",
            &port,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "yes",
            "--dir",
        ]
        .map(Into::into)
        .into();
        arguments.push(home.path("data").into_os_string());
        Ok(Launch {
            program,
            arguments,
            user: None,
        })
    }

    fn probe(&self, ports: &[u16]) -> Result<()> {
        let mut stream = connect(ports[0])?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer)?;
        if &answer != b"+PONG" {
            bail!("answered {:?} to PING", String::from_utf8_lossy(&answer));
        }
        Ok(())
    }

    fn settle(&self, _: &[u16]) -> Result<()> {
        Ok(())
    }

    fn stop_signal(&self) -> Signal {
        Signal::TERM
    }

    fn variables(&self, _: &Home, ports: &[u16]) -> Variables {
        vec![("REDIS_URL", format!("redis://127.0.0.1:{}", ports[0]))]
    }

    fn discard(&self, _: &Home) -> Result<()> {
        Ok(())
    }
}
