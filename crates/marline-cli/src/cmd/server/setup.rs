//! First-time setup of a server: key, configuration, first client.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use marline_proxy::credentials::Store;
use marline_proxy::invite::Invite;
use marline_proxy::private_file;
use marline_proxy::tls::ServerKey;

use crate::config::resolve_relative;
use crate::config::server::ServerOptions;

/// Creates the key, the credentials file and the configuration, none of which may exist, and the first client.
///
/// # Errors
/// An option is missing, or a file exists already.
pub(super) fn init(file: &Path, options: ServerOptions, client: &str) -> anyhow::Result<Invite> {
    let names = options.public_names()?;
    let mut options = options;
    // The paths are written into the file unchanged, so they are relative to the file from the start.
    let stem = PathBuf::from(file.file_name().context("--config must name a file")?);
    let key_name = options.key_file.get_or_insert_with(|| stem.with_extension("key"));
    let key_file = resolve_relative(file, key_name);
    let clients = options.credentials_file.get_or_insert_with(|| stem.with_extension("clients"));
    let store = Store::in_file(resolve_relative(file, clients));
    if key_file == store.path() || key_file == file || store.path() == file {
        bail!("configuration, key and credentials must be three different files");
    }
    for path in [file, &key_file, store.path()] {
        if path.exists() {
            bail!(
                "{} exists: this server is already set up (to add a client: `marline server --config {} \
                 credential add NAME`)",
                path.display(),
                file.display()
            );
        }
    }
    if let Some(directory) = file.parent()
        && !directory.as_os_str().is_empty()
    {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot create the directory {}", directory.display()))?;
    }
    let key = ServerKey::generate()?;
    private_file::create(&key_file, key.pkcs8())?;
    store.create()?;
    let token = store.change(|credentials| credentials.add(client))?;
    let options = toml::to_string(&options)?;
    let text = format!("# A Marline server; keys are the flags of `marline server`.\n\n{options}");
    private_file::create(file, text.as_bytes())?;
    Ok(Invite::new(names, key.pin(), token)?)
}

/// Creates another client.
///
/// # Errors
/// The server is not set up, or the name is taken.
pub(super) fn add_client(
    file: &Path,
    options: &ServerOptions,
    client: &str,
) -> anyhow::Result<Invite> {
    let names = options.public_names()?;
    let options = options.clone().into_effective(file);
    let key_file = options.key_file.unwrap_or_default();
    let store = Store::in_file(options.credentials_file.unwrap_or_default());
    private_file::check_mode(&key_file)?;
    let key = ServerKey::load(&key_file)?;
    let token = store.change(|credentials| credentials.add(client))?;
    Ok(Invite::new(names, key.pin(), token)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listening(address: &str) -> ServerOptions {
        ServerOptions { listen: vec![address.parse().unwrap()], ..ServerOptions::default() }
    }

    #[test]
    fn one_invite_per_client_all_with_the_same_pin() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("new/server.toml");
        let first = init(&file, listening("127.0.0.1:7777"), "first").unwrap();
        assert_eq!(first.servers[0].to_string(), "127.0.0.1:7777");
        let options = ServerOptions::from_file(&file).unwrap();
        let second = add_client(&file, &options, "second").unwrap();
        assert_eq!(first.pin, second.pin);
        assert_ne!(first.token, second.token);
        let plan = options.plan(&file).unwrap();
        let clients = Store::in_file(plan.credentials_file.clone()).load().unwrap();
        assert!(clients.find(&first.token.digest()).is_some_and(|c| &*c.name == "first"));
        assert!(clients.find(&second.token.digest()).is_some_and(|c| &*c.name == "second"));
        for private in [&file, &plan.key_file, &plan.credentials_file] {
            private_file::check_mode(private).unwrap();
        }
    }

    #[test]
    fn setup_overwrites_nothing_and_leaves_no_partial_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("server.toml");
        let error = init(&file, listening("0.0.0.0:7777"), "first").unwrap_err();
        assert!(error.to_string().contains("--public"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        init(&file, listening("127.0.0.1:7777"), "first").unwrap();
        let before = std::fs::read(dir.path().join("server.key")).unwrap();
        let error = init(&file, listening("127.0.0.1:7777"), "first").unwrap_err();
        assert!(error.to_string().contains("credential add"), "{error}");
        assert_eq!(std::fs::read(dir.path().join("server.key")).unwrap(), before);
    }
}
