//! The work of every server for `up`, `down` and `status`.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use crate::services::process::{Home, Launch};

/// Names and values that tests find in their environment.
pub(crate) type Variables = Vec<(&'static str, String)>;

/// One kind of server.
pub(crate) trait Server: Sync {
    fn name(&self) -> &'static str;

    /// Set by users who bring their own server; the first of [`Server::variables`].
    fn owner_variable(&self) -> &'static str;

    /// System packages that are not installed yet.
    fn missing_packages(&self) -> Vec<&'static str>;

    /// Gets what the server is made of. An error means that this machine cannot have it.
    fn fetch(&self, home: &Home) -> Result<()>;

    /// Makes the data directory. Called before every start; a second call changes nothing.
    fn prepare(&self, home: &Home) -> Result<()>;

    fn port_count(&self) -> usize;

    fn launch(&self, home: &Home, ports: &[u16]) -> Result<Launch>;

    /// Asks the server something only a working server can answer.
    fn probe(&self, ports: &[u16]) -> Result<()>;

    /// Makes roles and databases once the server answers. A second call changes nothing.
    fn settle(&self, ports: &[u16]) -> Result<()>;

    /// The signal for a clean and prompt end.
    fn stop_signal(&self) -> Signal;

    fn variables(&self, home: &Home, ports: &[u16]) -> Variables;

    /// Removes what was put outside the checkout, once the server is down.
    fn discard(&self, home: &Home) -> Result<()>;
}

/// A loopback connection that gives up rather than hang.
pub(crate) fn connect(port: u16) -> Result<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    Ok(stream)
}
