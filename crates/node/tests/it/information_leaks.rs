//! What a node says of others: nothing.
//!
//! Promise 4: "Locations, labels and credentials never leave the job and its agent"; and neither its log nor its
//! metrics hold a token, an address, a dataset id or a location.

use std::{
    io::{self, Read as _, Write},
    net::TcpStream,
    sync::{Arc, Mutex},
};

use forebay_core::Namespace;
use forebay_wire::{Request, SentToken};
use tracing_subscriber::fmt::MakeWriter;

use crate::{
    harness::{Data, PATIENCE, get, put},
    town::{OURS, THEIRS, Town, Way, hello, token_of},
};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[test]
fn neither_the_log_nor_the_metrics_tell() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(log.clone())
        .with_ansi(false)
        .with_max_level(tracing::Level::TRACE);
    subscriber.init();
    let mut said = String::new();
    let mut secrets = vec!["nowhere".to_owned(), "\"00001\"".to_owned(), "s3cr3t".to_owned()];
    for way in [Way::Clear, Way::Tls] {
        let town = Town::with(way, |config| config.metrics = Some("127.0.0.1:0".parse().unwrap()));
        let data = Data::of(&town.namespace(OURS), &[1000; 8]);
        secrets.extend([
            token_of(OURS),
            token_of(THEIRS),
            data.digest.summary().dataset.to_string(),
        ]);
        secrets.push(town.namespace(OURS).to_key_file().lines().last().unwrap().to_owned());
        let address = |content: &bytes::Bytes| town.namespace(OURS).address(content).to_string();
        secrets.extend(data.blobs.iter().map(address));
        let mut honest = town.connect(&town.by_token(OURS), "honest").unwrap();
        let handle = honest.open(&data.digest).unwrap();
        put(&mut honest, handle, &data, 0);
        get(&mut honest, handle, &data, 0, PATIENCE).unwrap();
        honest.claim(handle, &[1]).unwrap();
        assert!(honest.put(handle, 1, &data.blobs[2]).is_err(), "poison");
        honest.explain(handle).unwrap();
        // What goes wrong is logged, too.
        town.silent().ask(&hello("x", b"s3cr3t-token"));
        town.silent().send_bytes(b"s3cr3t nonsense that is longer than a header");
        let (namespace, dataset) = (Namespace::public().id(), data.digest.summary().dataset);
        let mut raw = town.raw(THEIRS);
        raw.ask(&Request::Show { namespace, dataset });
        raw.ask(&Request::Prove { dataset, proof: [7; 32] });
        raw.send_bytes(&Request::Stats.encode(1).to_bytes()[..7]);
        drop(raw);
        let mut metrics = TcpStream::connect(town.node.metrics.unwrap()).unwrap();
        metrics
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .unwrap();
        metrics.read_to_string(&mut said).unwrap();
        honest.evict(handle).unwrap();
        drop(honest);
        town.node.wait_for_connections(0);
    }
    let debug = format!(
        "{:?}",
        Request::Hello {
            version_min: 1,
            version_max: 1,
            job: String::new(),
            token: SentToken(b"s3cr3t".to_vec()),
        }
    );
    said.push_str(&debug);
    said.push_str(&String::from_utf8(log.0.lock().unwrap().clone()).unwrap());
    assert!(said.contains("connected") && said.contains("forebay_hits"), "{said}");
    for secret in secrets {
        // A part of it would be too much, too.
        let told = secret.get(..12).unwrap_or(&secret);
        assert!(!said.contains(told), "{told} is in:\n{said}");
    }
}
