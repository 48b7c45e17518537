//! After a stop, requests in progress finish and no new ones start.

use std::{io::Read as _, net::TcpStream, thread, time::Duration};

use forebay_core::units::{ByteRate, ByteSize};

use crate::harness::{Fixture, Raw, content};

#[test]
fn a_body_in_progress_is_finished() {
    let fixture = Fixture::with(|config| {
        config.bandwidth = Some(ByteRate(ByteSize(1_000_000)));
    });
    let data = content(300_000);
    fixture.write("k", &data);
    let address = fixture.origin.address();
    let mut stream = fixture.send("GET", "/bucket/k", &[], b"");
    let mut bytes = vec![0; 1000];
    stream.read_exact(&mut bytes).unwrap();
    let reader = thread::spawn(move || {
        stream.read_to_end(&mut bytes).unwrap();
        Raw::parse(&bytes)
    });
    drop(fixture);
    assert!(reader.join().unwrap().body == data);
    assert!(TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err());
}

#[test]
fn idle_connections_do_not_delay_a_stop() {
    let fixture = Fixture::new();
    let _idle = TcpStream::connect(fixture.origin.address()).unwrap();
    thread::sleep(Duration::from_millis(20));
    let started = std::time::Instant::now();
    drop(fixture);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}
