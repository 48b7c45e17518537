//! Namespaces: whoever lacks the key can neither compute an address nor check one.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
};

use crate::harness::Place;

/// Makes a key file; returns its path, the namespace's id, and the key in hexadecimal.
fn new_key(place: &Place, name: &str) -> (String, String, String) {
    let path = place.path(name).to_str().unwrap().to_owned();
    let id = place.forebay(["namespace", "new", &path]).succeeds().stdout.trim().to_owned();
    let key = fs::read_to_string(&path).unwrap().lines().nth(1).unwrap().to_owned();
    (path, id, key)
}

#[test]
fn another_key_gives_other_addresses_and_another_id() {
    let place = Place::with_objects(5, 100);
    let (team, team_id, _) = new_key(&place, "team.key");
    let (rivals, rivals_id, _) = new_key(&place, "rivals.key");
    let mut seen: Vec<(String, String)> = Vec::new();
    for (options, namespace) in [
        (vec![], "public"),
        (vec!["--namespace", &team], team_id.as_str()),
        (vec!["--namespace", &rivals], rivals_id.as_str()),
    ] {
        let report = place.build("x.digest", &options);
        assert_eq!(report["namespace"], namespace);
        let args = ["digest", "show", "x.digest", "--format", "json"];
        let shown = place.forebay(args).succeeds().json();
        let address = shown["first_items"][0]["blob"].as_str().unwrap().to_owned();
        seen.push((report["dataset"].as_str().unwrap().to_owned(), address));
    }
    for (at, (dataset, address)) in seen.iter().enumerate() {
        assert!(seen[..at].iter().all(|other| other.0 != *dataset && other.1 != *address));
    }
    let again = place.build("x.digest", &["--namespace", &team]);
    assert_eq!(again["dataset"], seen[1].0.as_str());
}

#[test]
fn keys_are_never_written_or_said() {
    let place = Place::with_objects(5, 100);
    let (file, id, key) = new_key(&place, "team.key");
    let (other, ..) = new_key(&place, "other.key");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let data = place.data();
    let data = data.to_str().unwrap();
    let mut said = String::new();
    for args in [
        vec!["digest", "build", data, "-o", "x.digest", "--namespace", &file],
        vec!["digest", "show", "x.digest"],
        vec!["digest", "verify", "x.digest", "--namespace", &file],
        vec!["digest", "verify", "x.digest", "--namespace", &other],
        vec!["digest", "build", data, "-o", "x.digest", "--chunks", "99", "--namespace", &file],
        vec!["namespace", "id", &file],
        vec!["namespace", "new", &file],
    ] {
        let ran = place.forebay(&args).env("FOREBAY_LOG", "trace").run();
        said += &ran.stdout;
        said += &ran.stderr;
    }
    assert!(said.contains(&id));
    assert!(!said.contains(&key), "the key was said");
    let bytes: Vec<u8> =
        (0..32).map(|at| u8::from_str_radix(&key[2 * at..][..2], 16).unwrap()).collect();
    for name in place.outputs() {
        let content = fs::read(place.out(&name)).unwrap();
        let holds = |secret: &[u8]| content.windows(secret.len()).any(|window| window == secret);
        assert!(!holds(key.as_bytes()) && !holds(&bytes), "the key is in {name}");
    }
}

#[test]
fn verifying_needs_the_key_of_the_digest() {
    let place = Place::with_objects(5, 100);
    let (team, team_id, _) = new_key(&place, "team.key");
    let (rivals, rivals_id, _) = new_key(&place, "rivals.key");
    place.build("team.digest", &["--namespace", &team]);
    place.build("public.digest", &[]);
    place.forebay(["digest", "verify", "team.digest", "--namespace", &team]).succeeds();
    let hint = "name its key file with --namespace";
    place.forebay(["digest", "verify", "team.digest"]).refuses(&[&team_id, "public", hint]);
    place
        .forebay(["digest", "verify", "team.digest", "--namespace", &rivals])
        .refuses(&[&team_id, &rivals_id, hint]);
    place
        .forebay(["digest", "verify", "public.digest", "--namespace", &team])
        .refuses(&["public", &team_id]);
    // The file alone can be checked by anyone.
    place.forebay(["digest", "verify", "team.digest", "--sample", "0"]).succeeds();
}

#[test]
fn bad_key_files_are_refused_and_never_quoted() {
    let place = Place::with_objects(2, 10);
    let (good, _, key) = new_key(&place, "good.key");
    let header = "forebay namespace key v1";
    let data = place.data();
    for (text, mode, saying) in [
        (format!("{header}\n{key}\n"), 0o640, "chmod 600"),
        (format!("{header}\n{key}\n"), 0o604, "chmod 600"),
        (format!("{header}\n{}\n", &key[2..]), 0o600, "malformed"),
        (format!("{header}\n{key}00\n"), 0o600, "malformed"),
        (format!("{header}\nzz{}\n", &key[2..]), 0o600, "malformed"),
        (format!("{header}\n{}\n", "0".repeat(64)), 0o600, "protects nothing"),
        (key.clone(), 0o600, "not a forebay namespace key"),
        (String::new(), 0o600, "not a forebay namespace key"),
        (format!("ssh-rsa {key}\n").repeat(100), 0o600, "not a forebay namespace key"),
    ] {
        let path = place.path("bad.key");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let path = path.to_str().unwrap();
        let data = data.to_str().unwrap();
        for args in [
            vec!["digest", "build", data, "-o", "x.digest", "--namespace", path],
            vec!["namespace", "id", path],
        ] {
            let ran = place.forebay(args).refuses(&["bad.key", saying]);
            assert!(!ran.stderr.contains(&key[2..]), "{ran:?}");
        }
    }
    place.forebay(["namespace", "id", "none.key"]).refuses(&["none.key", "No such file"]);
    place.forebay(["namespace", "new", &good]).refuses(&["good.key", "exists"]);
    assert!(place.outputs().is_empty());
}

#[test]
fn a_key_file_of_somebody_else_is_refused() {
    let place = Place::new();
    let (file, ..) = new_key(&place, "team.key");
    if chown(&file, Some(12345), None).is_err() {
        return; // Only root can give files away.
    }
    place.forebay(["namespace", "id", &file]).refuses(&["team.key", "belongs to another user"]);
}
