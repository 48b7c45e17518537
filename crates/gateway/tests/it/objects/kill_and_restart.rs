//! Kill and restart: a gateway that is killed at any point serves what it had stored, and never a
//! wrong byte.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    sync::atomic::Ordering,
};

use forebay_core::ByteSize;
use forebay_dev_origin::{ACCESS_KEY, Config, DevOrigin, SECRET_KEY};
use forebay_gateway::objects::ObjectCacheSettings;

use super::harness::{BUCKET, Gateway, SEGMENT, content, identity, origin_client, settings};

/// Directory of the device and endpoint of the origin, for the child.
const PLAN: &str = "FOREBAY_GATEWAY_TEST_CHILD";
const OBJECTS: u64 = 12;
const LENGTH: usize = 4 * SEGMENT + 321;

async fn open(directory: &std::path::Path, endpoint: &str) -> Gateway {
    let client = origin_client(endpoint, vec![identity(ACCESS_KEY, SECRET_KEY)]);
    // Nothing may come from memory. All objects fit on flash.
    let settings = ObjectCacheSettings { memory: ByteSize(0), ..settings(directory) };
    Gateway::open(client, &settings).await
}

/// Promises 1 and 7: never wrong bytes; warm restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_is_warm_and_serves_no_wrong_byte() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join(BUCKET)).unwrap();
    for number in 0..OBJECTS {
        let path = root.path().join(BUCKET).join(format!("o{number}"));
        std::fs::write(path, content(number, LENGTH)).unwrap();
    }
    let origin = DevOrigin::start(Config::new(root.path())).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut lives = 0;
    for round in 0..4_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "objects::kill_and_restart::child", "--ignored", "--nocapture"])
            .env(PLAN, format!("{}#{}", directory.path().display(), origin.endpoint()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Killed while it stores: after the lines of some objects.
        let printed = BufReader::new(child.stdout.take().unwrap()).lines();
        let read = printed.map_while(Result::ok).filter(|line| line.starts_with("read"));
        lives += read.take(usize::try_from(3 * round + 2).unwrap()).count();
        child.kill().unwrap();
        child.wait().unwrap();

        let gateway = open(directory.path(), &origin.endpoint()).await;
        let counters = gateway.cache.flash_counters().unwrap();
        if round == 3 {
            assert!(counters.entries > 0, "what was flushed is found again");
        }
        for number in 0..OBJECTS {
            let answer = gateway.get(0, &format!("o{number}"), &[]).await;
            assert!(answer.body == content(number, LENGTH), "round {round}, object {number}");
        }
        gateway.settled().await;
        gateway.cache.flush().await;
    }
    assert!(lives >= 4, "the children served");

    let gateway = open(directory.path(), &origin.endpoint()).await;
    origin.reset_counters();
    for number in 0..OBJECTS {
        let answer = gateway.get(0, &format!("o{number}"), &[]).await;
        assert_eq!(answer.cache(), "hit");
        assert!(answer.body == content(number, LENGTH));
    }
    assert_eq!(origin.counters().requests.get, 0);
    assert_eq!(gateway.cache.counters().pass_bytes.load(Ordering::SeqCst), 0);
}

/// Run by the test above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "child process of another test, which kills it"]
async fn child() {
    let Ok(plan) = std::env::var(PLAN) else { return };
    let (directory, endpoint) = plan.split_once('#').expect("a directory and an endpoint");
    let gateway = open(directory.as_ref(), endpoint).await;
    loop {
        for number in 0..OBJECTS {
            let answer = gateway.get(0, &format!("o{number}"), &[]).await;
            assert!(answer.body == content(number, LENGTH));
            report(number);
        }
    }
}

#[expect(clippy::print_stdout, reason = "a line for the parent process")]
fn report(number: u64) {
    println!("read {number}");
}
