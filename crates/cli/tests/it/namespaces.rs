//! Namespaces: without the key, addresses can be neither computed nor verified.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
};

use crate::harness::Sandbox;

/// Makes a key file. Returns its path, the id of the namespace, and the key in hexadecimal.
fn new_key(sandbox: &Sandbox, name: &str) -> (String, String, String) {
    let path = sandbox.path(name).to_str().unwrap().to_owned();
    let id = sandbox.forebay(["namespace", "new", &path]).succeeds().stdout.trim().to_owned();
    let key = fs::read_to_string(&path).unwrap().lines().nth(1).unwrap().to_owned();
    (path, id, key)
}

#[test]
fn another_key_gives_other_addresses_and_another_id() {
    let sandbox = Sandbox::with_objects(5, 100);
    let (team, team_id, _) = new_key(&sandbox, "team.key");
    let (others, others_id, _) = new_key(&sandbox, "others.key");
    let mut seen: Vec<(String, String)> = Vec::new();
    for (options, namespace) in [
        (vec![], "public"),
        (vec!["--namespace-key", &team], team_id.as_str()),
        (vec!["--namespace-key", &others], others_id.as_str()),
    ] {
        let report = sandbox.build("x.digest", &options);
        assert_eq!(report["namespace"], namespace);
        let args = ["digest", "show", "x.digest", "--format", "json"];
        let shown = sandbox.forebay(args).succeeds().json();
        let address = shown["first_items"][0]["blob"].as_str().unwrap().to_owned();
        seen.push((report["dataset"].as_str().unwrap().to_owned(), address));
    }
    for (at, (dataset, address)) in seen.iter().enumerate() {
        assert!(seen[..at].iter().all(|other| other.0 != *dataset && other.1 != *address));
    }
    let again = sandbox.build("x.digest", &["--namespace-key", &team]);
    assert_eq!(again["dataset"], seen[1].0.as_str());
}

#[test]
fn keys_are_never_written_or_printed() {
    let sandbox = Sandbox::with_objects(5, 100);
    let (file, id, key) = new_key(&sandbox, "team.key");
    let (other, ..) = new_key(&sandbox, "other.key");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let data = sandbox.data();
    let data = data.to_str().unwrap();
    let mut printed = String::new();
    for args in [
        vec!["digest", "build", data, "-o", "x.digest", "--namespace-key", &file],
        vec!["digest", "show", "x.digest"],
        vec!["digest", "verify", "x.digest", "--namespace-key", &file],
        vec!["digest", "verify", "x.digest", "--namespace-key", &other],
        vec!["digest", "build", data, "-o", "x.digest", "--chunks", "99", "--namespace-key", &file],
        vec!["namespace", "id", &file],
        vec!["namespace", "new", &file],
    ] {
        let ran = sandbox.forebay(&args).env("FOREBAY_LOG", "trace").run();
        printed += &ran.stdout;
        printed += &ran.stderr;
    }
    assert!(printed.contains(&id));
    assert!(!printed.contains(&key), "the key was printed");
    let bytes: Vec<u8> =
        (0..32).map(|at| u8::from_str_radix(&key[2 * at..][..2], 16).unwrap()).collect();
    for name in sandbox.outputs() {
        let content = fs::read(sandbox.out(&name)).unwrap();
        let holds = |secret: &[u8]| content.windows(secret.len()).any(|window| window == secret);
        assert!(!holds(key.as_bytes()) && !holds(&bytes), "the key is in {name}");
    }
}

#[test]
fn verifying_needs_the_key_of_the_digest() {
    let sandbox = Sandbox::with_objects(5, 100);
    let (team, team_id, _) = new_key(&sandbox, "team.key");
    let (others, others_id, _) = new_key(&sandbox, "others.key");
    sandbox.build("team.digest", &["--namespace-key", &team]);
    sandbox.build("public.digest", &[]);
    sandbox.forebay(["digest", "verify", "team.digest", "--namespace-key", &team]).succeeds();
    let hint = "give its key with --namespace-key";
    sandbox.forebay(["digest", "verify", "team.digest"]).refuses(&[&team_id, "public", hint]);
    sandbox.forebay(["digest", "verify", "team.digest", "--namespace-key", &others]).refuses(&[
        &team_id,
        &others_id,
        "give its own key",
    ]);
    sandbox.forebay(["digest", "verify", "public.digest", "--namespace-key", &team]).refuses(&[
        "public",
        &team_id,
        "leave --namespace-key out",
    ]);
    // The file can be checked without a key.
    sandbox.forebay(["digest", "verify", "team.digest", "--sample", "0"]).succeeds();
}

#[test]
fn invalid_key_files_are_rejected_and_never_quoted() {
    let sandbox = Sandbox::with_objects(2, 10);
    let (good, _, key) = new_key(&sandbox, "good.key");
    let header = "forebay namespace key v1";
    let data = sandbox.data();
    for (text, mode, expected) in [
        (format!("{header}\n{key}\n"), 0o640, "chmod 600"),
        (format!("{header}\n{key}\n"), 0o604, "chmod 600"),
        (format!("{header}\n{}\n", &key[2..]), 0o600, "malformed"),
        (format!("{header}\n{key}00\n"), 0o600, "malformed"),
        (format!("{header}\nzz{}\n", &key[2..]), 0o600, "malformed"),
        (format!("{header}\n{}\n", "0".repeat(64)), 0o600, "protects nothing"),
        (key.clone(), 0o600, "not a forebay namespace key"),
        (String::new(), 0o600, "not a forebay namespace key"),
        (format!("ssh-rsa {key}\n").repeat(100), 0o600, "longer than 4096 bytes"),
    ] {
        let path = sandbox.path("bad.key");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let path = path.to_str().unwrap();
        let data = data.to_str().unwrap();
        for args in [
            vec!["digest", "build", data, "-o", "x.digest", "--namespace-key", path],
            vec!["namespace", "id", path],
        ] {
            let ran = sandbox.forebay(args).refuses(&["bad.key", expected]);
            assert!(!ran.stderr.contains(&key[2..]), "{ran:?}");
        }
    }
    sandbox.forebay(["namespace", "id", "none.key"]).refuses(&["none.key", "No such file"]);
    sandbox.forebay(["namespace", "new", &good]).refuses(&["good.key", "exists"]);
    assert!(sandbox.outputs().is_empty());
}

#[test]
fn a_key_file_of_another_user_is_rejected() {
    let sandbox = Sandbox::new();
    let (file, ..) = new_key(&sandbox, "team.key");
    if chown(&file, Some(12345), None).is_err() {
        return; // Only root can change the owner of a file.
    }
    sandbox.forebay(["namespace", "id", &file]).refuses(&["team.key", "belongs to another user"]);
}
