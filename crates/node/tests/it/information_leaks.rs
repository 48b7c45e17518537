//! Information leaks: log and metrics of a node contain no token, address, dataset id or location.
//!
//! Promise 4: "Locations, labels and credentials never leave the job and its agent".

use std::{
    io::{self, Read as _, Write},
    net::TcpStream,
    sync::{Arc, Mutex},
};

use forebay_core::{BlobOrdinal, Namespace};
use forebay_wire::{Request, SentToken};
use tracing_subscriber::fmt::MakeWriter;

use crate::{
    harness::{Data, TIMEOUT, get, put},
    two_tenants::{OURS, THEIRS, TenantSetup, Transport, hello, token_of},
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
fn log_and_metrics_contain_no_secrets() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(log.clone())
        .with_ansi(false)
        .with_max_level(tracing::Level::TRACE);
    subscriber.init();
    let mut output = String::new();
    let mut secrets = vec!["nowhere".to_owned(), "\"00001\"".to_owned(), "s3cr3t".to_owned()];
    for transport in [Transport::Cleartext, Transport::Tls] {
        let setup = TenantSetup::with(transport, |config| {
            config.metrics = Some("127.0.0.1:0".parse().unwrap());
        });
        let data = Data::of(&setup.namespace(OURS), &[1000; 8]);
        secrets.extend([
            token_of(OURS),
            token_of(THEIRS),
            data.digest.summary().dataset.to_string(),
        ]);
        secrets.push(setup.namespace(OURS).to_key_file().lines().last().unwrap().to_owned());
        let address = |content: &bytes::Bytes| setup.namespace(OURS).address(content).to_string();
        secrets.extend(data.blobs.iter().map(address));
        let mut honest = setup.connect(&setup.by_token(OURS), "honest").unwrap();
        let handle = honest.open(&data.digest).unwrap();
        put(&mut honest, handle, &data, 0);
        get(&mut honest, handle, &data, 0, TIMEOUT).unwrap();
        honest.claim(handle, &[BlobOrdinal::new(1)]).unwrap();
        assert!(honest.put(handle, BlobOrdinal::new(1), &data.blobs[2]).is_err(), "poison");
        honest.explain(handle).unwrap();
        // Failures are logged as well.
        setup.without_hello().call(&hello("x", b"s3cr3t-token"));
        setup.without_hello().send_bytes(b"s3cr3t nonsense that is longer than a header");
        let (namespace, dataset) = (Namespace::public().id(), data.digest.summary().dataset);
        let mut raw = setup.raw(THEIRS);
        raw.call(&Request::Open { namespace, dataset });
        raw.call(&Request::Prove { dataset, proof: [7; 32] });
        raw.send_bytes(&Request::Stats.encode(1).to_bytes()[..7]);
        drop(raw);
        let mut metrics = TcpStream::connect(setup.node.metrics.unwrap()).unwrap();
        metrics
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .unwrap();
        metrics.read_to_string(&mut output).unwrap();
        honest.evict(handle).unwrap();
        drop(honest);
        setup.node.wait_until_connections(0);
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
    output.push_str(&debug);
    output.push_str(&String::from_utf8(log.0.lock().unwrap().clone()).unwrap());
    assert!(output.contains("connected") && output.contains("forebay_hits"), "{output}");
    for secret in secrets {
        // A prefix would be a leak as well.
        let prefix = secret.get(..12).unwrap_or(&secret);
        assert!(!output.contains(prefix), "{prefix} is in:\n{output}");
    }
}
