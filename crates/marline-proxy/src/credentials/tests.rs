use super::*;

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::in_file(dir.path().join("clients"));
    store.create().unwrap();
    (dir, store)
}

#[test]
fn add_find_revoke() {
    let (_dir, store) = store();
    let laptop = store.change(|c| c.add("laptop")).unwrap();
    let phone = store.change(|c| c.add("phone")).unwrap();
    let loaded = store.load().unwrap();
    assert_eq!(loaded.list().len(), 2);
    assert_eq!(loaded.find(&laptop.digest()).map(|c| &*c.name), Some("laptop"));
    assert_eq!(loaded.find(&phone.digest()).map(|c| &*c.name), Some("phone"));
    assert!(loaded.find(&Secret::random().unwrap().digest()).is_none());
    store.change(|c| c.revoke("laptop")).unwrap();
    assert!(store.load().unwrap().find(&laptop.digest()).is_none());
    assert!(store.load().unwrap().find(&phone.digest()).is_some());
}

#[test]
fn the_file_does_not_contain_the_token() {
    let (_dir, store) = store();
    let token = store.change(|c| c.add("laptop")).unwrap();
    let text = std::fs::read_to_string(store.path()).unwrap();
    assert!(!text.contains(&Digest::from_bytes(*token.expose()).to_hex()));
    assert!(text.contains(&token.digest().to_hex()));
}

#[test]
fn names_are_checked_and_unique() {
    let mut credentials = Credentials::default();
    credentials.add("a").unwrap();
    for bad in ["a", "", "with space", "new\nline", &"x".repeat(65)] {
        assert!(credentials.add(bad).is_err(), "{bad:?}");
    }
    assert!(credentials.revoke("b").unwrap_err().to_string().contains("\"b\""));
}

#[test]
fn wrong_files_say_where() {
    for (text, says) in [
        ("[[credential]]\nname = \"x\"\n", "line 1"),
        ("[[credential]]\nname = \"x\"\ntoken-sha256 = \"12\"\ncreated-unix-s = 1\n", "64 hex"),
        ("color = 1\n", "color"),
        ("[[credential]\n", "line 1"),
    ] {
        let error = format!("{:#}", Credentials::parse(text).unwrap_err());
        assert!(error.contains(says), "{text:?}: {error}");
    }
}

#[test]
fn two_writers_lose_nothing() {
    let (_dir, store) = store();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for index in 0..10 {
                    store.change(|c| c.add(&format!("w{writer}-{index}"))).unwrap();
                }
            });
        }
    });
    assert_eq!(store.load().unwrap().list().len(), 40);
}

#[tokio::test]
async fn a_running_server_follows_the_file_and_survives_a_broken_one() {
    let (_dir, store) = store();
    let again = Arc::new(Notify::new());
    let mut following =
        store.clone().watch_file(Arc::clone(&again), Suspensions::default()).unwrap();
    following.mark_unchanged();
    again.notify_one();
    // The file is read again although it has not changed.
    following.changed().await.unwrap();
    let token = store.change(|c| c.add("new")).unwrap();
    following.changed().await.unwrap();
    assert!(following.borrow_and_update().find(&token.digest()).is_some());
    private_file::replace(store.path(), b"broken =").unwrap();
    tokio::time::sleep(RELOAD_INTERVAL + RELOAD_INTERVAL / 2).await;
    assert!(following.borrow().find(&token.digest()).is_some());
    private_file::replace(store.path(), FILE_HEADER.as_bytes()).unwrap();
    following.changed().await.unwrap();
    assert!(following.borrow().find(&token.digest()).is_none());
}
