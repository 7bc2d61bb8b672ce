//! What an authority issues is read with `x509-parser`, as others read it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{KeyPair, PublicKeyData};
use x509_parser::extensions::{GeneralName, KeyUsage};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::{CertificateRevocationList, FromDer, Pem, X509Certificate};

use super::store::{Authority, Entry, Order, State};
use super::{Duty, Error, Holder, place};
use fs_proto::Claims;

/// A day in 2026.
const NOW: Duration = Duration::from_secs(1_790_000_000);
const DAY: Duration = Duration::from_secs(86_400);

fn order(label: &str, at: &[&str]) -> Order {
    let at = at.iter().map(|at| place(at).unwrap()).collect();
    Order { role: Holder::of_label(label).unwrap(), at, claims: Claims::default(), days: 365, renew: false }
}

fn renewal(label: &str) -> Order {
    Order { renew: true, ..order(label, &[]) }
}

fn authority(dir: &tempfile::TempDir) -> Authority {
    Authority::init(&dir.path().join("ca"), Some("Test"), 3650, NOW).unwrap()
}

/// Hands the file's certificate to a check.
fn with<R>(path: &Path, check: impl FnOnce(&X509Certificate<'_>) -> R) -> R {
    let text = fs::read(path).unwrap();
    let (_, pem): (_, Pem) = parse_x509_pem(&text).unwrap();
    check(&pem.parse_x509().unwrap())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn usage(result: Result<impl Sized, Error>) -> String {
    match result.map(|_| ()).unwrap_err() {
        Error::Usage(text) => text,
        Error::Failed(text) => panic!("not the request's fault: {text}"),
    }
}

fn failed(result: Result<impl Sized, Error>) -> String {
    match result.map(|_| ()).unwrap_err() {
        Error::Failed(text) => text,
        Error::Usage(text) => panic!("the request's fault: {text}"),
    }
}

/// Returns the serial numbers in the list of revoked certificates, and its number.
fn revoked(dir: &Path) -> (Vec<String>, u64) {
    let text = fs::read(dir.join("revoked.pem")).unwrap();
    let (_, pem) = parse_x509_pem(&text).unwrap();
    assert_eq!(pem.label, "X509 CRL");
    let (_, list) = CertificateRevocationList::from_der(&pem.contents).unwrap();
    with(&dir.join("authority.pem"), |own| {
        list.verify_signature(own.public_key()).unwrap();
        assert_eq!(list.issuer(), own.subject());
        assert!(list.last_update() < own.validity().not_after);
        assert_eq!(list.next_update(), Some(own.validity().not_after));
    });
    let serials = list.iter_revoked_certificates().map(|one| format!("{:032x}", one.serial()));
    (serials.collect(), u64::try_from(list.crl_number().unwrap()).unwrap())
}

#[test]
fn an_authority_signs_certificates_and_lists_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    drop(authority(&dir));
    let ca = dir.path().join("ca");
    with(&ca.join("authority.pem"), |own| {
        own.verify_signature(None).unwrap();
        let constraints = own.basic_constraints().unwrap().unwrap();
        assert!(constraints.critical && constraints.value.ca);
        assert_eq!(constraints.value.path_len_constraint, Some(0));
        let usage = own.key_usage().unwrap().unwrap().value;
        assert!(usage.key_cert_sign() && usage.crl_sign() && !usage.digital_signature());
        let days = (own.validity().not_after.timestamp() - NOW.as_secs() as i64) / 86_400;
        assert_eq!(days, 3650);
    });
    assert_eq!(revoked(&ca), (Vec::new(), 1));
    assert_eq!([&ca, &ca.join("issued"), &ca.join("replaced")].map(|dir| mode(dir)), [0o700; 3]);
    assert_eq!(mode(&ca.join("authority.key")), 0o600);
    let again = usage(Authority::init(&ca, None, 1, NOW));
    assert!(again.contains("already"), "{again}");
    let names = [0, 1].map(|at| Authority::init(&dir.path().join(format!("{at}")), None, 1, NOW).unwrap().own());
    let [one, other] = names.map(|own| own.unwrap().name);
    assert_ne!(one, other, "those who trust both tell them apart");
}

fn duties_of(duties: Vec<Duty>) -> Claims {
    Claims { duties: duties.into_iter().collect(), ..Claims::default() }
}

#[test]
fn each_role_gets_its_names_and_its_usage() {
    let dir = tempfile::tempdir().unwrap();
    let authority = authority(&dir);
    let ca = dir.path().join("ca");
    let mut serials = Vec::new();
    let long = format!("host-{}", "a".repeat(64));
    for (label, at, duties, uris) in [
        ("manager", &["a.example", "10.0.0.1", "fd00::1"][..], vec![], &["pvfs:manager"][..]),
        ("iod-3", &["b_1"], vec![Duty::Metrics], &["pvfs:iod/3", "pvfs:may/metrics"]),
        (
            &long,
            &[],
            vec![],
            &[&format!("pvfs:host/{}", "a".repeat(64)), "pvfs:uid/1-4294967294", "pvfs:gid/1-4294967294"],
        ),
        ("user-anna", &[], vec![Duty::Bench, Duty::Admin], &["pvfs:user/anna", "pvfs:may/admin", "pvfs:may/bench"]),
    ] {
        let (entry, old) = authority.issue(Order { claims: duties_of(duties), ..order(label, at) }).unwrap();
        assert!(old.is_none() && entry.name == label && entry.names == at, "{entry:?}");
        let path = ca.join("issued").join(label);
        let (path, key) = (format!("{}.pem", path.display()), format!("{}.key", path.display()));
        assert_eq!((mode(key.as_ref()), mode(path.as_ref()) & 0o700), (0o600, 0o600));
        let key = KeyPair::from_pem(&fs::read_to_string(key).unwrap()).unwrap();
        with(path.as_ref(), |own| {
            with(&ca.join("authority.pem"), |ca| {
                own.verify_signature(Some(ca.public_key())).unwrap();
                assert_eq!(own.issuer(), ca.subject());
            });
            assert_eq!(own.public_key().subject_public_key.data, key.der_bytes());
            let found = own.subject_alternative_name().unwrap().unwrap().value;
            let text = found.general_names.iter().map(|name| match name {
                GeneralName::DNSName(name) | GeneralName::URI(name) => (*name).to_owned(),
                GeneralName::IPAddress([10, 0, 0, 1]) => "10.0.0.1".to_owned(),
                GeneralName::IPAddress([0xfd, 0, .., 1]) => "fd00::1".to_owned(),
                other => panic!("{other}"),
            });
            assert_eq!(text.collect::<Vec<_>>(), [at, uris].concat());
            let usage: &KeyUsage = own.key_usage().unwrap().unwrap().value;
            assert!(usage.digital_signature() && !usage.key_cert_sign() && !own.is_ca());
            let extended = own.extended_key_usage().unwrap().unwrap().value;
            assert_eq!((extended.client_auth, extended.server_auth), (true, !label.starts_with("user")));
            let (from, until) = (own.validity().not_before.timestamp(), own.validity().not_after.timestamp());
            assert_eq!(from, NOW.as_secs() as i64 - 3600, "clocks differ");
            assert_eq!(until, (NOW + 365 * DAY).as_secs() as i64);
            assert_eq!(format!("{:032x}", own.serial), entry.serial);
        });
        serials.push(entry.serial);
    }
    let listed: Vec<Entry> = authority.list().unwrap();
    assert_eq!(listed.iter().map(|one| &one.serial).collect::<Vec<_>>(), serials.iter().collect::<Vec<_>>());
    serials.sort();
    serials.dedup();
    assert_eq!(serials.len(), 4);
}

#[test]
fn a_name_by_which_a_server_is_reached_is_a_name_or_an_address() {
    for good in ["a", "a.b-c.example", "localhost", "10.0.0.1", "::1", "xn--bcher-kva.example", "3com.example"] {
        assert!(place(good).is_ok(), "{good}");
    }
    for bad in
        ["", "a:7000", "tcp://a", "[::1]", "10.0.0.300", "a..b", ".a", "a.", "-a", "*.a", "a b", "ä", "pvfs:manager"]
    {
        assert!(place(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_server_needs_a_name_and_a_certificate_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let authority = authority(&dir);
    for server in ["manager", "iod-0"] {
        assert!(usage(authority.issue(order(server, &[]))).contains("--at"));
    }
    authority.issue(order("iod-0", &["a"])).unwrap();
    let before = fs::read(dir.path().join("ca/issued/iod-0.key")).unwrap();
    assert!(usage(authority.issue(order("iod-0", &["a"]))).contains("--renew"));
    assert_eq!(fs::read(dir.path().join("ca/issued/iod-0.key")).unwrap(), before);
    assert!(Holder::of_label("user-../../x").is_err() && Holder::of_label("../manager").is_err());
}

#[test]
fn a_renewal_keeps_names_and_duties_and_the_old_certificate_can_still_be_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let authority = authority(&dir);
    let (first, _) =
        authority.issue(Order { claims: duties_of(vec![Duty::Backup]), ..order("iod-0", &["a", "::1"]) }).unwrap();
    let (second, old) = authority.issue(renewal("iod-0")).unwrap();
    assert_eq!(old.unwrap().serial, first.serial, "it is still good, and said to be");
    assert_eq!((&second.names, &second.duties), (&first.names, &first.duties));
    let (third, _) = authority.issue(Order { renew: true, ..order("iod-0", &["b"]) }).unwrap();
    assert_eq!((third.names, third.duties.len()), (vec!["b".to_owned()], 0), "nothing else than what was said");
    assert_eq!(authority.list().unwrap().iter().filter(|one| one.replaced).count(), 2);

    let mut serials = [first.serial, second.serial];
    serials.sort();
    let role = Holder::Iod(0);
    authority.revoke(&role, true).unwrap();
    assert_eq!(revoked(&dir.path().join("ca")), (serials.to_vec(), 2), "not the newest");
    assert!(usage(authority.revoke(&role, true)).contains("already"));
    assert_eq!(authority.revoke(&role, false).unwrap()[0].serial, third.serial);
    let (_, old) = authority.issue(renewal("iod-0")).unwrap();
    assert!(old.is_none(), "it was revoked");
    assert_eq!(authority.list().unwrap()[0].state, State::Valid);
}

#[test]
fn what_is_revoked_stays_so() {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca");
    let authority = authority(&dir);
    let serial = |label| authority.issue(order(label, &[])).unwrap().0.serial;
    let mut serials = vec![serial("user-anna"), serial("user-bob"), serial("user-carl")];
    serials.sort();
    for (user, number) in [("user-anna", 2), ("user-bob", 3), ("user-carl", 4)] {
        let role = Holder::of_label(user).unwrap();
        assert_eq!(authority.revoke(&role, false).unwrap().len(), 1);
        assert_eq!(revoked(&ca).1, number);
        assert!(usage(authority.revoke(&role, false)).contains("already"));
    }
    assert_eq!(revoked(&ca).0, serials);
    assert!(authority.list().unwrap().iter().all(|one| one.state == State::Revoked));
    assert!(usage(authority.revoke(&Holder::Manager, false)).contains("no certificate of manager"));
    // Neither a list that is gone nor that of another authority is an empty one.
    let list = fs::read(ca.join("revoked.pem")).unwrap();
    drop(Authority::init(&dir.path().join("other"), Some("Test"), 1, NOW).unwrap());
    fs::copy(dir.path().join("other/revoked.pem"), ca.join("revoked.pem")).unwrap();
    assert!(failed(authority.list()).contains("not signed by this authority"));
    fs::remove_file(ca.join("revoked.pem")).unwrap();
    failed(
        authority
            .revoke(&Holder::User("dora".to_owned()), false)
            .or(authority.issue(order("user-dora", &[])).map(|_| vec![])),
    );
    fs::write(ca.join("revoked.pem"), list).unwrap();
    assert_eq!(authority.list().unwrap().len(), 3, "nothing was issued meanwhile");
}

#[test]
fn secrets_that_others_can_read_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca");
    authority(&dir).issue(order("user-anna", &[])).unwrap();
    for (path, open, closed) in
        [("", 0o750, 0o700), ("authority.key", 0o604, 0o600), ("issued/user-anna.key", 0o640, 0o600)]
    {
        let path: PathBuf = ca.join(path).components().collect();
        set_mode(&path, open);
        let text = failed(Authority::open(&ca, NOW));
        assert!(text.contains(&format!("chmod {closed:o} {}", path.display())), "{text}");
        set_mode(&path, closed);
        Authority::open(&ca, NOW).unwrap();
    }
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    set_mode(&open, 0o755);
    assert!(failed(Authority::init(&open, None, 1, NOW)).contains("chmod 700"));
    assert_eq!(fs::read_dir(&open).unwrap().count(), 0);
}

/// A crash may leave a key without its certificate, and files that have no name yet.
#[test]
fn what_a_crash_interrupted_can_be_done_again() {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca");
    drop(authority(&dir));
    fs::remove_file(ca.join("authority.pem")).unwrap();
    fs::write(ca.join(".new-1"), "half a certi").unwrap();
    assert!(usage(Authority::open(&ca, NOW)).contains("pvfsd ca init"));
    let authority = authority(&dir);
    assert_eq!(revoked(&ca), (Vec::new(), 1), "it is signed by the new key");

    fs::write(ca.join("issued/user-anna.key"), "of an issue that did not end").unwrap();
    set_mode(&ca.join("issued/user-anna.key"), 0o600);
    authority.issue(order("user-anna", &[])).unwrap();
    // A renewal has written the new key, and not the certificate.
    let old = fs::read(ca.join("issued/user-anna.pem")).unwrap();
    let (second, _) = authority.issue(renewal("user-anna")).unwrap();
    fs::write(ca.join("issued/user-anna.pem"), old).unwrap();
    assert_eq!(authority.list().unwrap().len(), 1, "the old one, which was copied first, is not replaced");
    assert!(usage(authority.revoke(&Holder::User("anna".to_owned()), true)).contains("no replaced certificate"));
    let (third, _) = authority.issue(renewal("user-anna")).unwrap();
    assert_ne!(second.serial, third.serial);
    let key = KeyPair::from_pem(&fs::read_to_string(ca.join("issued/user-anna.key")).unwrap()).unwrap();
    with(&ca.join("issued/user-anna.pem"), |own| {
        assert_eq!(own.public_key().subject_public_key.data, key.der_bytes());
    });
    drop(authority);
    fs::remove_file(ca.join("authority.pem")).unwrap();
    assert!(usage(Authority::init(&ca, None, 1, NOW)).contains("from a copy"), "people trust the old key");
}

#[test]
fn certificates_end_with_their_authority_and_its_key_is_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca");
    let authority = Authority::init(&ca, None, 100, NOW).unwrap();
    let (entry, _) = authority.issue(Order { days: 99, ..order("user-anna", &[]) }).unwrap();
    assert_eq!((entry.state, entry.days_left), (State::Valid, 99));
    let (entry, _) = authority.issue(order("user-bob", &[])).unwrap();
    assert_eq!(entry.until, authority.own().unwrap().until);
    drop(authority);
    let later = Authority::open(&ca, NOW + 100 * DAY - DAY / 2).unwrap();
    assert_eq!(later.list().unwrap().iter().map(|one| one.state).collect::<Vec<_>>(), [State::Expired, State::Valid]);
    drop(later);
    let too_late = Authority::open(&ca, NOW + 101 * DAY).unwrap();
    assert!(failed(too_late.issue(renewal("user-anna"))).contains("expired"));
    drop(too_late);

    drop(Authority::init(&dir.path().join("other"), None, 1, NOW).unwrap());
    fs::copy(dir.path().join("other/authority.key"), ca.join("authority.key")).unwrap();
    let authority = Authority::open(&ca, NOW).unwrap();
    assert!(failed(authority.issue(renewal("user-anna"))).contains("not the key"));
    fs::remove_file(ca.join("authority.key")).unwrap();
    assert!(failed(authority.revoke(&Holder::User("anna".to_owned()), false)).contains("is lost"));
    assert_eq!(authority.list().unwrap().len(), 2, "for which no key is needed");
}
