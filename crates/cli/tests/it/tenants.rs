//! Several tenants on one node over TLS, with the commands of `docs/guide/security.md`.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
};

use forebay_client::Reader;
use forebay_core::ItemOrdinal;

use crate::harness::{Forebay, Running, Sandbox, content};

const SIZE: usize = 3000;
const OBJECTS: u64 = 20;

/// The commands of a section of the documentation.
fn commands(section: &str) -> String {
    let text = include_str!("../../../../docs/guide/security.md");
    let (_, section) =
        text.split_once(&format!("\n## {section}\n")).expect("the page has the section");
    let (_, block) = section.split_once("```console\n").expect("the section has commands");
    let (block, _) = block.split_once("```").expect("the block has an end");
    block.replace("$ ", "")
}

fn shell(script: &str, directory: &Path) {
    let ran = Command::new("sh").args(["-ec", script]).current_dir(directory).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

fn has_openssl() -> bool {
    Command::new("openssl").arg("version").output().is_ok_and(|ran| ran.status.success())
}

/// The line that a process prints when it is ready.
fn ready(process: &mut Running) -> serde_json::Value {
    let mut line = String::new();
    BufReader::new(process.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
    serde_json::from_str(&line).expect("the process is ready")
}

/// Promise 4: only an authenticated client receives bytes. Promise 5: an agent without valid
/// credentials reads the origin.
#[test]
fn tenants_share_a_node_over_tls() {
    if !has_openssl() {
        return;
    }
    let sandbox = Sandbox::with_objects(usize::try_from(OBJECTS).unwrap(), SIZE);
    let origin = sandbox.serve(|_| {});
    sandbox.build_from(&origin, "x.digest", &[]).succeeds();
    let digest = forebay_digest::open(&sandbox.out("x.digest")).unwrap().digest.clone();
    let here = sandbox.out("");
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
        tls_client_ca = \"ca.pem\"
        [[tenants]]
        name = \"vision\"
        tokens = [\"vision.token\"]
        namespaces = [\"public\"]
        [[tenants]]
        name = \"speech\"
        certificates = [\"speech.example\"]
        namespaces = [\"public\"]
    ";
    fs::write(sandbox.out("forebay.toml"), config).unwrap();
    let checked = sandbox.forebay(["serve", "--config", "forebay.toml", "--check-config"]).run();
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let mut node = sandbox.forebay(["serve", "--config", "forebay.toml"]).start();
    let address = ready(&mut node)["listen"].as_str().unwrap().to_owned();
    let port = address.rsplit_once(':').unwrap().1;
    let endpoint = format!("tls://localhost:{port}");

    let trusting = |forebay: Forebay| forebay.env("FOREBAY_TLS_CA", "ca.pem");
    let agent = |name: &str, token: &str| {
        let socket = sandbox.path(name).join("agent.sock");
        let args = ["agent", "x.digest", "--socket", socket.to_str().unwrap(), "--node", &endpoint];
        let forebay = trusting(sandbox.forebay(args).reaching(&origin));
        let mut agent = forebay.env("FOREBAY_TOKEN_FILE", token).start();
        ready(&mut agent);
        let mut reader = Reader::new(digest.clone(), None, &socket, "test");
        for item in 0..OBJECTS {
            let bytes = reader.get(&[ItemOrdinal::new(item)]).unwrap();
            let length = SIZE + usize::try_from(item).unwrap() % 7;
            assert_eq!(bytes[0], content(item, length), "item {item}");
        }
    };
    let status = || trusting(sandbox.forebay(["status", "--format", "json", "--node", &endpoint]));
    agent("known", "vision.token");
    let known = status()
        .env("FOREBAY_TLS_CERTIFICATE", "speech.pem")
        .env("FOREBAY_TLS_KEY", "speech.key")
        .succeeds()
        .json();
    assert_eq!((&known["puts"], &known["preauth_rejected"]), (&OBJECTS.into(), &0.into()));
    agent("unknown", "wrong.token");
    status().refuses(&["does not know you", "FOREBAY_TOKEN_FILE"]);
    status().env("FOREBAY_TOKEN_FILE", "wrong.token").refuses(&["does not know you"]);
    fs::set_permissions(sandbox.out("wrong.token"), fs::Permissions::from_mode(0o644)).unwrap();
    status().env("FOREBAY_TOKEN_FILE", "wrong.token").refuses(&["chmod 600"]);
    status().env("FOREBAY_TLS_CA", "").refuses(&["set FOREBAY_TLS_CA"]);
    let slip = sandbox.forebay(["status", "--node", "tls://localhost"]).run();
    assert!(slip.code == Some(2) && slip.stderr.contains("tls://HOST:PORT"), "{slip:?}");
    // The user of the node needs no credentials on its socket.
    let own = sandbox.forebay(["status", "--format", "json", "--socket", "../run/node.sock"]);
    assert_eq!(own.succeeds().json()["puts"], OBJECTS);
}
