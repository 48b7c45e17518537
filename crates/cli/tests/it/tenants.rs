//! A node that several tenants reach over TLS: real processes, and the commands that `docs/security.md` gives.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
};

use forebay_client::Reader;
use forebay_core::ItemOrdinal;

use crate::harness::{Forebay, Place, Running, content};

const SIZE: usize = 3000;
const OBJECTS: u64 = 20;

/// The commands of a section of the documentation.
fn commands(section: &str) -> String {
    let text = include_str!("../../../../docs/security.md");
    let (_, section) = text.split_once(&format!("\n## {section}\n")).expect("the section");
    let (_, block) = section.split_once("```console\n").expect("its commands");
    let (block, _) = block.split_once("```").expect("their end");
    block.replace("$ ", "")
}

fn shell(script: &str, directory: &Path) {
    let ran = Command::new("sh").args(["-ec", script]).current_dir(directory).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

fn has_openssl() -> bool {
    Command::new("openssl").arg("version").output().is_ok_and(|ran| ran.status.success())
}

/// What it says when it is ready.
fn ready(process: &mut Running) -> serde_json::Value {
    let mut line = String::new();
    BufReader::new(process.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
    serde_json::from_str(&line).expect("it starts")
}

/// Promise 4: whoever is given bytes has proved its identity. Promise 5: and whoever has none reads its origin.
#[test]
fn tenants_share_a_node_over_tls() {
    if !has_openssl() {
        return;
    }
    let place = Place::with_objects(usize::try_from(OBJECTS).unwrap(), SIZE);
    let origin = place.serve(|_| {});
    place.build_from(&origin, "x.digest", &[]).succeeds();
    let digest = forebay_digest::open(&place.out("x.digest")).unwrap().digest.clone();
    let here = place.out("");
    shell(&commands("Certificates"), &here);
    shell(
        "umask 077; for name in vision wrong; do openssl rand -hex 32 > $name.token; done",
        &here,
    );
    let config = "
        socket = \"../run/node.sock\"
        directory = \"../cache\"
        capacity = \"64MB\"
        listen = \"127.0.0.1:0\"
        tls_certificate = \"node.pem\"
        tls_key = \"node.key\"
        tls_clients = \"ca.pem\"
        [[tenants]]
        name = \"vision\"
        tokens = [\"vision.token\"]
        namespaces = [\"public\"]
        [[tenants]]
        name = \"speech\"
        certificates = [\"speech.example\"]
        namespaces = [\"public\"]
    ";
    fs::write(place.out("forebay.toml"), config).unwrap();
    let checked = place.forebay(["serve", "--config", "forebay.toml", "--check-config"]).run();
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let mut node = place.forebay(["serve", "--config", "forebay.toml"]).start();
    let address = ready(&mut node)["listen"].as_str().unwrap().to_owned();
    let port = address.rsplit_once(':').unwrap().1;
    let endpoint = format!("tls://localhost:{port}");

    let trusting = |forebay: Forebay| forebay.env("FOREBAY_TLS_CA", "ca.pem");
    let agent = |name: &str, token: &str| {
        let socket = place.path(name).join("agent.sock");
        let args = ["agent", "x.digest", "--socket", socket.to_str().unwrap(), "--node", &endpoint];
        let forebay = trusting(place.forebay(args).reaching(&origin));
        let mut agent = forebay.env("FOREBAY_TOKEN_FILE", token).start();
        ready(&mut agent);
        let mut reader = Reader::new(digest.clone(), None, &socket, "test");
        for item in 0..OBJECTS {
            let bytes = reader.get(&[ItemOrdinal::new(item)]).unwrap();
            let length = SIZE + usize::try_from(item).unwrap() % 7;
            assert_eq!(bytes[0], content(item, length), "item {item}");
        }
    };
    let status = || trusting(place.forebay(["status", "--format", "json", "--node", &endpoint]));
    agent("known", "vision.token");
    let known = status()
        .env("FOREBAY_TLS_CERTIFICATE", "speech.pem")
        .env("FOREBAY_TLS_KEY", "speech.key")
        .succeeds()
        .json();
    assert_eq!((&known["puts"], &known["strangers_refused"]), (&OBJECTS.into(), &0.into()));
    agent("unknown", "wrong.token");
    status().refuses(&["does not know you", "FOREBAY_TOKEN_FILE"]);
    status().env("FOREBAY_TOKEN_FILE", "wrong.token").refuses(&["does not know you"]);
    fs::set_permissions(place.out("wrong.token"), fs::Permissions::from_mode(0o644)).unwrap();
    status().env("FOREBAY_TOKEN_FILE", "wrong.token").refuses(&["chmod 600"]);
    status().env("FOREBAY_TLS_CA", "").refuses(&["set FOREBAY_TLS_CA"]);
    let slip = place.forebay(["status", "--node", "tls://localhost"]).run();
    assert!(slip.code == Some(2) && slip.stderr.contains("tls://HOST:PORT"), "{slip:?}");
    // On its own machine its own user needs nothing.
    let own = place.forebay(["status", "--format", "json", "--socket", "../run/node.sock"]);
    assert_eq!(own.succeeds().json()["puts"], OBJECTS);
}
