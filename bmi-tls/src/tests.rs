//! Two channels over bytes in memory, whole, in pieces, and changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use bmi_conformance::certificates::{Authority, Issued, Says};
use bmi_core::{ErrorKind, PeerIdentity};
use proptest::prelude::*;

use crate::{Breach, Channel, Security};

const HOUR: Duration = Duration::from_secs(3600);

fn security(authority: &Authority, issued: &Issued) -> Security {
    Security::mutual(&issued.certificate, &issued.key, authority.certificate()).unwrap()
}

/// Two who trust each other.
fn friends() -> (Authority, Security, Security) {
    let authority = Authority::new("friends");
    let client = security(&authority, &authority.issue("client", &Says::names(&["pvfs:user/anna"])));
    let server = security(&authority, &authority.issue("server", &Says::names(&["pvfs:manager"])));
    (authority, client, server)
}

fn pair(client: &Security, server: &Security) -> (Channel, Channel) {
    (Channel::client(client, "127.0.0.1").unwrap(), Channel::server(server).unwrap())
}

/// Moves bytes from one side to the other, `step` at a time. Returns why the receiver gives up.
fn carry(from: &mut Channel, to: &mut Channel, step: usize) -> Result<(), Breach> {
    while !from.unsent().is_empty() {
        let bytes = from.unsent()[..step.min(from.unsent().len())].to_vec();
        let space = match to.session() {
            Some(session) => {
                if !session.payload()?.is_empty() {
                    return Ok(());
                }
                session.space()
            }
            None => to.space(),
        };
        let n = bytes.len().min(space.len());
        space[..n].copy_from_slice(&bytes[..n]);
        from.sent(n)?;
        match to.session() {
            Some(session) => session.filled(n),
            None => _ = to.advance(n)?,
        }
    }
    Ok(())
}

/// Shakes hands. Returns what each side says.
fn shake(client: &mut Channel, server: &mut Channel, step: usize) -> [Result<(), Breach>; 2] {
    let mut results = [Ok(()), Ok(())];
    for _ in 0..4 {
        if results[1].is_ok() {
            results[1] = carry(client, server, step);
        }
        if results[0].is_ok() {
            results[0] = carry(server, client, step);
        }
        // An alert that came after the handshake.
        if let (Ok(()), Some(session)) = (&results[0], client.session()) {
            results[0] = session.payload().map(|_| ());
        }
    }
    results
}

fn say(from: &mut Channel, bytes: &[u8]) {
    let session = from.session().expect("a session");
    assert!(bytes.len() <= session.room());
    session.seal(bytes.len(), |to| to.copy_from_slice(bytes)).unwrap();
}

/// Returns all that has arrived.
fn hear(to: &mut Channel) -> Result<Vec<u8>, Breach> {
    let session = to.session().expect("a session");
    let mut all = Vec::new();
    loop {
        let payload = session.payload()?;
        if payload.is_empty() {
            return Ok(all);
        }
        all.extend_from_slice(payload);
        let len = payload.len();
        session.consume(len);
    }
}

fn deliver(from: &mut Channel, to: &mut Channel) -> Vec<u8> {
    let mut all = Vec::new();
    while !from.unsent().is_empty() {
        carry(from, to, usize::MAX).unwrap();
        all.extend(hear(to).unwrap());
    }
    all
}

#[test]
fn two_who_trust_each_other_learn_who_the_other_is() {
    let (_authority, client, server) = friends();
    for step in [1, 7, usize::MAX] {
        let (mut near, mut far) = pair(&client, &server);
        assert_eq!(shake(&mut near, &mut far, step), [Ok(()), Ok(())]);
        let names = |channel: &mut Channel| channel.session().expect("a session").identity().clone();
        assert!(names(&mut near).is_named("pvfs:manager"));
        let of_client = ["localhost", "127.0.0.1", "::1", "pvfs:user/anna"];
        assert_eq!(names(&mut far), PeerIdentity::named(of_client));
        assert_eq!(client.identity(), PeerIdentity::named(of_client));
        say(&mut near, b"hello");
        say(&mut far, b"welcome");
        assert_eq!(deliver(&mut near, &mut far), b"hello");
        assert_eq!(deliver(&mut far, &mut near), b"welcome");
    }
}

#[test]
fn a_name_of_a_host_is_no_uri() {
    let authority = Authority::new("friends");
    let says = Says {
        hosts: ["pvfs:manager", "10.9.8.7", "CN=root", "*.example"].map(str::to_owned).to_vec(),
        ..Says::names(&["pvfs:user/anna"])
    };
    let own = security(&authority, &authority.issue("own", &says)).identity();
    assert!(own.is_named("pvfs:user/anna") && own.is_named("*.example"), "{own}");
    assert!(!["pvfs:manager", "10.9.8.7", "CN=root"].iter().any(|name| own.is_named(name)), "{own}");
    let nameless = Says { names: Vec::new(), ..Says::names(&[]) };
    let own = security(&authority, &authority.issue("pvfs:manager", &nameless)).identity();
    assert_eq!(own, PeerIdentity::named(["CN=pvfs:manager"]));
}

#[test]
fn payload_right_behind_the_handshake_is_not_lost() {
    let (_authority, client, server) = friends();
    let (mut near, mut far) = pair(&client, &server);
    carry(&mut near, &mut far, usize::MAX).unwrap();
    carry(&mut far, &mut near, usize::MAX).unwrap();
    say(&mut near, b"first");
    say(&mut near, &[7; 9000]);
    let bytes = near.unsent().to_vec();
    for cut in [bytes.len() - 1, bytes.len() - 9000, bytes.len()] {
        let (mut near, mut far) = pair(&client, &server);
        carry(&mut near, &mut far, usize::MAX).unwrap();
        carry(&mut far, &mut near, usize::MAX).unwrap();
        say(&mut near, b"first");
        say(&mut near, &[7; 9000]);
        let mut heard = Vec::new();
        while !near.unsent().is_empty() {
            carry(&mut near, &mut far, cut).unwrap();
            heard.extend(hear(&mut far).unwrap());
        }
        assert_eq!((&heard[..5], heard.len()), (&b"first"[..], 9005));
    }
}

#[test]
fn who_is_not_trusted_is_told_why() {
    let (mut authority, client, server) = friends();
    let (stranger, namesake) = (Authority::new("strangers"), Authority::new("friends"));
    let says = Says::names(&[]);
    let of = |says: &Says| authority.issue("other", says);
    let refused = |client: &Security, server: &Security| {
        let (mut near, mut far) = pair(client, server);
        let results = shake(&mut near, &mut far, usize::MAX);
        assert!(far.session().is_none() || near.session().is_none(), "{results:?}");
        results.map(|result| result.expect_err("it is refused").to_string())
    };
    let contains = |[client, server]: [String; 2], words: [&str; 2]| {
        assert!(client.contains(words[0]) && server.contains(words[1]), "client: {client}, server: {server}");
    };
    // The client.
    let wrong = security(&authority, &stranger.issue("wrong", &says));
    contains(refused(&wrong, &server), ["does not know the authority", "does not trust"]);
    let wrong = security(&authority, &namesake.issue("wrong", &says));
    contains(refused(&wrong, &server), ["not signed by the authority", "not signed by the authority"]);
    let early = security(&authority, &of(&Says { from: says.until - HOUR, ..says.clone() }));
    contains(refused(&early, &server), ["not good", "not good yet"]);
    // The server.
    let wrong = security(&authority, &stranger.issue("wrong", &says));
    contains(refused(&client, &wrong), ["does not trust", "does not know the authority"]);
    let early = security(&authority, &of(&Says { from: says.until - HOUR, ..says.clone() }));
    contains(refused(&client, &early), ["not good yet", "not good"]);
    let elsewhere = security(&authority, &of(&Says { names: vec!["elsewhere.example".into()], ..says.clone() }));
    contains(refused(&client, &elsewhere), ["not for 127.0.0.1, but for: ", "not good for this"]);
    // Revoked.
    let leaver = authority.issue("leaver", &says);
    let list = authority.revoke(&leaver);
    let leaver = security(&authority, &leaver);
    let knows = |security: &Security| security.clone().without_revoked(&list).unwrap();
    contains(refused(&leaver, &knows(&server)), ["is revoked", "is revoked"]);
    contains(refused(&knows(&client), &leaver), ["is revoked", "is revoked"]);
    let (mut near, mut far) = pair(&client, &knows(&server));
    assert_eq!(shake(&mut near, &mut far, usize::MAX), [Ok(()), Ok(())], "others are not");
}

#[test]
fn a_certificate_that_has_expired_is_of_no_use() {
    let authority = Authority::new("friends");
    let says = Says::names(&[]);
    let issued = authority.issue("old", &Says { until: says.from + HOUR, ..says.clone() });
    let error = Security::mutual(&issued.certificate, &issued.key, authority.certificate()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("old.pem: the certificate has expired"), "{error}");
}

#[test]
fn bytes_in_the_clear_are_not_taken() {
    let (_authority, client, server) = friends();
    for mut channel in [Channel::client(&client, "localhost").unwrap(), Channel::server(&server).unwrap()] {
        channel.space()[0] = b'B';
        assert_eq!(channel.advance(1), Err(Breach::Clear));
        assert!(!channel.is_shaking_hands());
    }
}

#[test]
fn a_handshake_takes_bounded_memory() {
    let (_authority, _, server) = friends();
    let mut channel = Channel::server(&server).unwrap();
    let mut sent = 0;
    // The beginning of a hello that has no end.
    let mut hello = vec![22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff];
    hello.resize(5 + 0x4000, 0);
    let breach = loop {
        let space = channel.space();
        assert!(!space.is_empty());
        let n = space.len().min(hello.len() - sent % hello.len());
        space[..n].copy_from_slice(&hello[sent % hello.len()..][..n]);
        sent += n;
        assert!(sent < 1 << 20, "it takes whatever comes");
        if let Err(breach) = channel.advance(n) {
            break breach;
        }
    };
    assert!(matches!(breach, Breach::Violation(_)), "{breach:?}");
}

#[test]
fn keys_change_under_way() {
    let (_authority, client, server) = friends();
    let client = client.with_records_of_key(3).unwrap();
    let (mut near, mut far) = pair(&client, &server);
    assert_eq!(shake(&mut near, &mut far, usize::MAX), [Ok(()), Ok(())]);
    for round in 0..20u8 {
        say(&mut near, &[round; 100]);
        say(&mut far, &[round; 50]);
        assert_eq!(deliver(&mut near, &mut far), [round; 100]);
        assert_eq!(deliver(&mut far, &mut near), [round; 50]);
    }
    let often = client.with_records_of_key(1).unwrap();
    let (mut near, mut far) = pair(&often, &server);
    assert_eq!(shake(&mut near, &mut far, usize::MAX), [Ok(()), Ok(())]);
    let breach = (0..100).find_map(|_| {
        say(&mut near, b"x");
        carry(&mut near, &mut far, usize::MAX).and_then(|()| hear(&mut far)).err()
    });
    assert_eq!(breach, Some(Breach::Violation("it changed its keys too often")));
}

#[test]
fn the_second_handshake_goes_on_with_the_secrets_of_the_first() {
    let (authority, client, server) = friends();
    let bytes = |client: &Security| {
        let (mut near, mut far) = pair(client, &server);
        carry(&mut near, &mut far, usize::MAX).unwrap();
        let len = far.unsent().len();
        assert_eq!(shake(&mut near, &mut far, usize::MAX), [Ok(()), Ok(())]);
        assert!(far.session().unwrap().identity().is_named("pvfs:user/anna"));
        len
    };
    let (first, second) = (bytes(&client), bytes(&client));
    assert!(second < first / 2, "no certificates: {first} and {second} bytes");
    // Files that were read again begin anew: a certificate may have been revoked.
    client.reload().unwrap();
    assert!(bytes(&client) > second);
    drop(authority);
}

#[test]
fn the_end_is_told() {
    let (_authority, client, server) = friends();
    let (mut near, mut far) = pair(&client, &server);
    assert_eq!(shake(&mut near, &mut far, usize::MAX), [Ok(()), Ok(())]);
    near.session().unwrap().close();
    carry(&mut near, &mut far, usize::MAX).unwrap();
    assert_eq!(hear(&mut far), Err(Breach::Ended));
}

#[test]
fn records_that_bring_nothing_are_counted() {
    let (_authority, client, server) = friends();
    let (mut near, mut far) = pair(&client, &server);
    assert_eq!(shake(&mut near, &mut far, usize::MAX), [Ok(()), Ok(())]);
    let breach = (0..100).find_map(|_| {
        near.session().unwrap().seal_empty();
        carry(&mut near, &mut far, usize::MAX).and_then(|()| hear(&mut far)).err()
    });
    assert_eq!(breach, Some(Breach::Violation("it sent many records that bring nothing")));
}

#[test]
fn files_that_are_no_good_are_named() {
    let authority = Authority::new("friends");
    let own = authority.issue("own", &Says::names(&[]));
    let other = authority.issue("other", &Says::names(&[]));
    let error = |certificate, key, authorities| {
        Security::mutual(certificate, key, authorities).map(|_| ()).unwrap_err().to_string()
    };
    let (authorities, empty) = (authority.certificate(), authority.folder().join("empty.pem"));
    fs::write(&empty, "").unwrap();
    let missing = authority.folder().join("missing.pem");
    for (error, words) in [
        (error(&own.certificate, &other.key, &authorities), ["other.key", "keys may not be consistent"]),
        (error(&missing, &own.key, &authorities), ["missing.pem", "No such file"]),
        (error(&empty, &own.key, &authorities), ["empty.pem", "there is no certificate in it"]),
        (error(&own.certificate, &own.certificate, &authorities), ["own.pem", "others can use the key"]),
        (error(&own.certificate, &own.key, &empty), ["empty.pem", "no certificate of an authority"]),
    ] {
        assert!(words.iter().all(|words| error.contains(words)), "{error}");
    }
    fs::set_permissions(&own.key, fs::Permissions::from_mode(0o640)).unwrap();
    let error = error(&own.certificate, &own.key, &authorities);
    assert!(error.contains("its mode is 640: chmod 600"), "{error}");
}

#[test]
fn what_fails_to_be_read_again_changes_nothing() {
    let (authority, client, server) = friends();
    let before = client.identity();
    let file = authority.folder().join("client.pem");
    let good = fs::read(&file).unwrap();
    fs::write(&file, "nothing").unwrap();
    assert!(client.reload().is_err());
    assert_eq!(client.identity(), before);
    let (mut near, mut far) = pair(&client, &server);
    assert_eq!(shake(&mut near, &mut far, usize::MAX), [Ok(()), Ok(())]);
    fs::write(&file, good).unwrap();
    authority.issue("client", &Says::names(&["pvfs:user/ben"]));
    client.reload().unwrap();
    assert!(client.identity().is_named("pvfs:user/ben"));
    assert!(client.expires() > crate::certificate::now());
    // A copy, and nothing of the key.
    assert!(format!("{:?}", client.clone()).contains("pvfs:user/ben"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A change of any byte is noticed, or the byte was not there to be read yet.
    #[test]
    fn no_byte_can_be_changed(at in any::<prop::sample::Index>(), bit in 0u8..8, lens in prop::collection::vec(1usize..3000, 1..4)) {
        let (_authority, client, server) = friends();
        let (mut near, mut far) = pair(&client, &server);
        assert_eq!(shake(&mut near, &mut far, usize::MAX), [Ok(()), Ok(())]);
        let mut whole = Vec::new();
        for (index, len) in lens.iter().enumerate() {
            let bytes = vec![index as u8; *len];
            say(&mut near, &bytes);
            whole.extend(bytes);
        }
        let mut wire = near.unsent().to_vec();
        prop_assert!(!wire.windows(32).any(|window| window == [0; 32]), "payload in the clear");
        let at = at.index(wire.len());
        wire[at] ^= 1 << bit;
        let session = far.session().unwrap();
        let (mut heard, mut sent) = (Vec::new(), 0);
        let end = loop {
            match session.payload() {
                Err(breach) => break Some(breach),
                Ok([]) if sent == wire.len() => break None,
                Ok([]) => {
                    let space = session.space();
                    let n = space.len().min(wire.len() - sent);
                    space[..n].copy_from_slice(&wire[sent..sent + n]);
                    sent += n;
                    session.filled(n);
                }
                Ok(payload) => {
                    heard.extend_from_slice(payload);
                    let n = payload.len();
                    session.consume(n);
                }
            }
        };
        prop_assert!(whole.starts_with(&heard) && heard.len() < whole.len());
        // A length that grew waits for more.
        prop_assert!(end.is_some() || sent == wire.len());
    }
}
