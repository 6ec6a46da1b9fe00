//! A small HTTP/1.1 client that can misbehave.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::within;

/// One connection.
pub(crate) struct Client {
    stream: TcpStream,
    /// The bytes that were read and not yet taken.
    buffer: Vec<u8>,
}

/// The response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The status and the body, for snapshots.
    pub(crate) fn short(&self) -> String {
        format!("{} {}", self.status, self.body)
    }
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = within(TcpStream::connect(address)).await.unwrap();
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        within(self.stream.write_all(bytes.as_ref())).await.unwrap();
    }

    /// Sends as much as the server takes; it may close meanwhile.
    pub(crate) async fn send_some(&mut self, bytes: impl AsRef<[u8]>) {
        within(self.stream.write_all(bytes.as_ref())).await.ok();
    }

    pub(crate) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> Answer {
        let length = if body.is_empty() && method != "POST" {
            String::new()
        } else {
            format!("content-length: {}\r\n", body.len())
        };
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}{length}\r\n{body}");
        self.send(request).await;
        if method == "HEAD" {
            self.answer_to_head().await
        } else {
            self.answer().await
        }
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, "", "").await
    }

    /// Waits until an answer begins, and leaves it there.
    pub(crate) async fn first_byte(&mut self) {
        assert!(self.read_more().await, "closed before an answer");
    }

    /// The answer, or nothing if the server closed before the first byte of it.
    pub(crate) async fn try_get(&mut self, path: &str) -> Option<Answer> {
        self.send_some(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"))
            .await;
        if self.buffer.is_empty() && !self.read_more().await {
            return None;
        }
        Some(self.answer().await)
    }

    pub(crate) async fn answer(&mut self) -> Answer {
        let mut answer = self.answer_to_head().await;
        let length: usize = answer
            .header("content-length")
            .map_or(0, |v| v.parse().unwrap());
        assert_eq!(
            answer.header("transfer-encoding"),
            None,
            "this client reads no chunks"
        );
        while self.buffer.len() < length {
            assert!(self.read_more().await, "closed within a body: {answer:?}");
        }
        answer.body = String::from_utf8(self.buffer.drain(..length).collect()).unwrap();
        answer
    }

    async fn answer_to_head(&mut self) -> Answer {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            assert!(
                self.read_more().await,
                "closed before an answer: {:?}",
                self.buffer
            );
        };
        let head = String::from_utf8(self.buffer.drain(..end).collect()).unwrap();
        let mut lines = head.lines();
        let status = lines
            .next()
            .unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Answer {
            status,
            headers,
            body: String::new(),
        }
    }

    /// Waits until the server closes, and gives what came before that.
    pub(crate) async fn closed(&mut self) -> String {
        while self.read_more().await {}
        String::from_utf8_lossy(&std::mem::take(&mut self.buffer)).into_owned()
    }

    /// Whether there was more. A reset is an end too.
    async fn read_more(&mut self) -> bool {
        let mut chunk = [0; 4096];
        let n = within(self.stream.read(&mut chunk)).await.unwrap_or(0);
        self.buffer.extend_from_slice(&chunk[..n]);
        n > 0
    }
}
