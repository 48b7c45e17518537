//! Kills: an owner is killed at any time. The next owner finds what was sealed, whole, and nothing
//! else.
//!
//! The owner is this test program, run with an otherwise ignored test.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use forebay_core::{ByteSize, streams::Lifetime};
use forebay_flash::io::Backend;
use forebay_streams::{CreateOptions, FullPolicy, OpenOptions, Store, StoreConfig};

use crate::sim::content;

/// Environment variable with the owner's directory, and the number of streams before it.
const PLAN: &str = "FOREBAY_TEST_KILLED_OWNER";
const KILLS: u64 = 6;
const BLOCKS: u64 = 4;

fn open(directory: &Path) -> Store {
    let config = StoreConfig::new(directory, ByteSize::mib(65));
    StoreConfig { backend: Backend::Auto, ..config }.open().unwrap()
}

fn length(stream: u64, block: u64) -> usize {
    usize::try_from((stream * 7 + block) * 50_021 % 400_000).expect("short")
}

/// Promises 7 and 9.
#[test]
fn a_killed_owner_loses_only_what_was_not_sealed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let (mut sealed, mut destroyed): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
    let mut random = fastrand::Rng::with_seed(1);
    let mut begun = 0;
    for _ in 0..KILLS {
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kills::owner", "--ignored", "--nocapture"])
            .env(PLAN, format!("{begun}#{}", path.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
        let wanted = random.usize(1..20);
        let mut on_line = |line: String| {
            let Some((word, number)) = line.split_once(' ') else { return false };
            let Ok(number) = number.parse::<u64>() else { return false };
            match word {
                "sealed" => sealed.push(number),
                "destroying" => sealed.retain(|other| *other != number),
                "destroyed" => destroyed.push(number),
                "begun" => begun = number + 1,
                _ => return false,
            }
            true
        };
        let mut seen = 0;
        while seen < wanted
            && let Some(Ok(line)) = lines.next()
        {
            seen += usize::from(on_line(line));
        }
        owner.kill().unwrap();
        owner.wait().unwrap();
        lines.map_while(Result::ok).for_each(|line| {
            on_line(line);
        });
        let store = open(&path);
        for stream in &sealed {
            let reader = store.open(&stream.to_string(), OpenOptions::default()).unwrap();
            let mut blocks = 0;
            for block in reader.blocks() {
                assert_eq!(block.unwrap()[..], content(*stream, length(*stream, blocks))[..]);
                blocks += 1;
            }
            assert_eq!(blocks, BLOCKS, "promise 9: never shorter");
        }
        for info in store.list() {
            let number: u64 = info.name.as_str().parse().unwrap();
            assert!(!destroyed.contains(&number), "{number} was destroyed");
            assert_eq!(info.blocks, BLOCKS, "{number} is complete");
        }
    }
    assert!(!sealed.is_empty() || !destroyed.is_empty());
}

/// Run by the test above.
#[test]
#[ignore = "child process of another test, which kills it"]
fn owner() {
    let Ok(plan) = std::env::var(PLAN) else { return };
    let (begun, path) = plan.split_once('#').expect("a number and a path");
    let first: u64 = begun.parse().expect("a number");
    let store = open(Path::new(path));
    let mut stdout = std::io::stdout();
    let mut say = |word: &str, stream: u64| {
        stdout.write_all(format!("\n{word} {stream}\n").as_bytes()).unwrap();
        stdout.flush().unwrap();
    };
    let kept = CreateOptions { lifetime: Lifetime::Kept, full: FullPolicy::Error };
    let family = store.family("shared", Lifetime::Kept).unwrap();
    for stream in first.. {
        say("begun", stream);
        let name = stream.to_string();
        let writer = match stream % 3 {
            0 => store.create(&name, kept),
            1 => family.create(&name, FullPolicy::Error),
            _ => store.create(&name, CreateOptions::default()),
        };
        let mut writer = writer.unwrap();
        for block in 0..BLOCKS {
            writer.append(&content(stream, length(stream, block))).unwrap();
        }
        writer.seal().unwrap();
        if stream % 3 < 2 {
            say("sealed", stream);
        }
        let old = store.list().into_iter().filter_map(|info| info.name.as_str().parse().ok());
        let old: Vec<u64> = old.filter(|number| number + 6 < stream).collect();
        for stream in old {
            say("destroying", stream);
            store.destroy(&stream.to_string(), std::time::Duration::ZERO).unwrap();
            say("destroyed", stream);
        }
    }
}
