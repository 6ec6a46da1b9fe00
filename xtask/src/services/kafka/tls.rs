//! A certificate authority and a server certificate for 127.0.0.1, made by `keytool`.
//!
//! The authority is a certificate of its own: several TLS libraries refuse one that is both the
//! root of trust and the server's own.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::output_of;

/// Opens both key stores; they guard nothing but a test broker.
pub(super) const PASSWORD: &str = "tidegate-tls";

/// Makes `ca.pem` and `server.p12` in `directory`, unless they are there.
pub(super) fn make(directory: &Path) -> Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    // Named only when complete, so that an interrupted run starts over.
    let half_made = directory.with_extension("new");
    if half_made.is_dir() {
        fs::remove_dir_all(&half_made).context("could not clear half-made keys away")?;
    }
    fs::create_dir_all(&half_made).context("could not create the directory for keys")?;
    for line in [
        "-genkeypair -alias ca -dname CN=tidegate-test-ca -ext bc:c=ca:true \
         -ext ku:c=keyCertSign,cRLSign -keyalg EC -groupname secp256r1 -validity 3650 \
         -keystore ca.p12",
        "-exportcert -rfc -alias ca -file ca.pem -keystore ca.p12",
        "-genkeypair -alias server -dname CN=localhost -keyalg EC -groupname secp256r1 \
         -validity 3650 -keystore server.p12",
        "-certreq -alias server -file server.csr -keystore server.p12",
        "-gencert -rfc -alias ca -infile server.csr -outfile server.pem -validity 3650 \
         -ext san=ip:127.0.0.1,dns:localhost -ext eku=serverAuth -keystore ca.p12",
        "-importcert -noprompt -alias ca -file ca.pem -keystore server.p12",
        "-importcert -noprompt -alias server -file server.pem -keystore server.p12",
    ] {
        output_of(
            Command::new("keytool")
                .current_dir(&half_made)
                .args(line.split_whitespace())
                .args(["-storetype", "PKCS12", "-storepass", PASSWORD]),
        )
        .context("could not make the broker's keys")?;
    }
    fs::rename(&half_made, directory).context("could not put the keys in place")
}
