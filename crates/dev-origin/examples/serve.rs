//! Serves a directory until interrupted: `serve ROOT [PORT]`.
#![allow(clippy::print_stdout)]
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut root = None;
    let mut listen = "127.0.0.1:0".to_owned();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match &*arg {
            "--root" => root = args.next(),
            "--listen" => listen = args.next().unwrap(),
            _ => {}
        }
    }
    let listener = tokio::net::TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    println!(
        "{{\"endpoint\": \"http://{address}\", \"access_key\": \"forebay\", \"secret_key\": \"forebay-dev\"}}"
    );
    let config = forebay_dev_origin::Config::new(root.unwrap());
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    forebay_dev_origin::run(listener, config, async move {
        term.recv().await;
    })
    .await
}
