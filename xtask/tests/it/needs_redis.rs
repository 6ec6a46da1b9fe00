use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::{fresh, variable};

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(url: &str) -> Self {
        let address = url
            .strip_prefix("redis://")
            .expect("REDIS_URL is a redis:// address");
        let address = address.split('/').next().unwrap_or(address);
        let stream = TcpStream::connect(address).expect("Redis listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("a timeout can be set");
        Self(BufReader::new(stream))
    }

    /// The first line of the answer to an inline command.
    fn call(&mut self, command: &str) -> String {
        self.0
            .get_mut()
            .write_all(format!("{command}\r\n").as_bytes())
            .expect("Redis reads");
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("Redis answers");
        line.trim_end().to_owned()
    }
}

#[test]
#[ignore = "needs redis"]
fn keeps_what_it_is_given() {
    let mut client = Client::connect(&variable("REDIS_URL"));
    assert_eq!(client.call("PING"), "+PONG");
    let key = fresh("key");
    assert_eq!(client.call(&format!("SET {key} tide EX 60")), "+OK");
    assert_eq!(client.call(&format!("GET {key}")), "$4");
    assert_eq!(client.line(), "tide");
    assert_eq!(client.call(&format!("DEL {key}")), ":1");
}
