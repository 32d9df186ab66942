//! Compiled program of the README.

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[rustfmt::skip]
#[expect(dead_code, reason = "compiled, and compared with the README")]
async fn server() -> Result<()> {
    use marline::Server;

    let server = Server::builder().listen("0.0.0.0:4500".parse()?).bind().await?;
    while let Some((stream, _peer)) = server.accept().await {
        tokio::spawn(async move {
            let (mut from, mut to) = stream.into_split();
            tokio::io::copy(&mut from, &mut to).await
        });
    }
    Ok(())
}

#[rustfmt::skip]
#[expect(dead_code, reason = "compiled, and compared with the README")]
async fn client() -> Result<()> {
    use marline::Client;
    use tokio::io::AsyncWriteExt;

    let client = Client::builder().path("wlan0".parse()?).path("wwan0".parse()?).bind().await?;
    let mut stream = client.connect("server.example:4500").await?;
    stream.write_all(b"hello").await?;
    Ok(())
}

#[test]
fn the_readme_shows_this_program() {
    let readme = include_str!("../../../../README.md");
    let block = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let lines = block.expect("a block of Rust").lines().map(str::trim);
    let code: Vec<_> =
        lines.filter(|l| !l.is_empty() && !l.starts_with("//") && !l.starts_with("use ")).collect();
    assert!(code.len() > 8, "{code:?}");
    let here = include_str!("readme.rs");
    for line in code {
        assert!(here.lines().any(|ours| ours.trim() == line), "{line}");
    }
}
