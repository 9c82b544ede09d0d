//! Tests of network lists: entries, decisions, and the setting.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn rules(entries: &[&str]) -> NetworkRules {
    NetworkRules::parse(entries).unwrap()
}

fn addresses(text: &str) -> Vec<IpAddr> {
    text.split_whitespace().map(|address| address.parse().unwrap()).collect()
}

#[rstest]
#[case("example.org:443", "example.org:443")]
#[case("Example.ORG.:443", "example.org:443")]
#[case("bücher.example:80", "xn--bcher-kva.example:80")]
#[case("xn--bcher-kva.example:80", "xn--bcher-kva.example:80")]
#[case("example.org:*", "example.org:*")]
#[case("*.Example.org:443", "*.example.org:443")]
#[case("localhost:5432", "localhost:5432")]
#[case("under_score.example:1", "under_score.example:1")]
#[case("192.0.2.7:8080", "192.0.2.7:8080")]
#[case("[2001:DB8::0001]:443", "[2001:db8::1]:443")]
#[case("[::ffff:192.0.2.7]:443", "192.0.2.7:443")]
#[case("10.0.0.0/8:*", "10.0.0.0/8:*")]
#[case("[fd00::/8]:22", "[fd00::/8]:22")]
fn entries_have_one_normal_form(#[case] entry: &str, #[case] normal: &str) {
    let rule: NetworkRule = entry.parse().unwrap();
    assert_eq!(rule.to_string(), normal);
    assert_eq!(normal.parse::<NetworkRule>().unwrap(), rule);
}

#[rstest]
#[case("example.org", "write \"example.org:443\"")]
#[case("https://example.org/x", "write host and port, such as \"example.org:443\"")]
#[case("example.org:0", "a number from 1 to 65535, or *")]
#[case("example.org:+80", "a number from 1 to 65535, or *")]
#[case("example.org:65536", "a number from 1 to 65535, or *")]
#[case("example.org:", "a number from 1 to 65535, or *")]
#[case("example.org:443/path", "a number from 1 to 65535, or *")]
#[case("*:443", "network = \"on\"")]
#[case("a.*.org:443", "as in \"*.example.org:443\"")]
#[case("*example.org:443", "as in \"*.example.org:443\"")]
#[case("*.10.0.0.1:443", "\"10.0.0.0/8:443\"")]
#[case("2001:db8::1", "\"[ADDRESS]:PORT\"")]
#[case("2001:db8::1:443", "\"[ADDRESS]:PORT\"")]
#[case("0x7f.1:80", "write 127.0.0.1")]
#[case("2130706433:80", "write 127.0.0.1")]
#[case("0177.0.0.1:80", "write 127.0.0.1")]
#[case("10.1.2.3/8:80", "write 10.0.0.0/8")]
#[case("10.0.0.0/33:80", "\"[fd00::/8]:443\"")]
#[case("0.0.0.0:80", "unspecified, multicast or broadcast")]
#[case("224.0.0.1:80", "unspecified, multicast or broadcast")]
#[case("user@example.org:80", "names no host")]
#[case("exa mple.org:80", "names no host")]
#[case("exa%6dple.org:80", "names no host")]
#[case("..:80", "names no host")]
#[case(":80", "names no host")]
#[case("[fe80::1%eth0]:80", "names no host")]
fn a_wrong_entry_gets_the_right_way_to_write_it(#[case] entry: &str, #[case] advice: &str) {
    let error = entry.parse::<NetworkRule>().unwrap_err().to_string();
    assert!(error.starts_with(&format!("{entry:?} ")) && error.contains(advice), "{error}");
}

const LIST: &[&str] = &["example.org:443", "*.cdn.example:*", "127.0.0.1:8080", "10.0.0.0/8:22", "[2001:db8::5]:443"];

#[rstest]
#[case("example.org", 443, true)]
#[case("EXAMPLE.org.", 443, true)]
#[case("ｅxample.org", 443, true)]
#[case("example.org", 80, false)]
#[case("www.example.org", 443, false)]
#[case("example.org.evil.example", 443, false)]
#[case("evil-example.org", 443, false)]
#[case("a.cdn.example", 1, true)]
#[case("a.b.cdn.example", 65535, true)]
#[case("cdn.example", 443, false)]
#[case("evilcdn.example", 443, false)]
#[case(".cdn.example", 443, false)]
#[case("127.0.0.1", 8080, true)]
#[case("127.0.0.1", 8081, false)]
#[case("[::ffff:127.0.0.1]", 8080, true)]
#[case("::ffff:7f00:1", 8080, true)]
#[case("127.0.0.2", 8080, false)]
#[case("127.1", 8080, false)]
#[case("0x7f000001", 8080, false)]
#[case("2130706433", 8080, false)]
#[case("0177.0.0.1", 8080, false)]
#[case("１２７.0.0.1", 8080, false)]
#[case("localhost", 8080, false)]
#[case("10.255.0.1", 22, true)]
#[case("10.255.0.1", 23, false)]
#[case("11.0.0.1", 22, false)]
#[case("[2001:db8::5]", 443, true)]
#[case("2001:db8:0:0::5", 443, true)]
#[case("2001:db8::6", 443, false)]
#[case("example.org\0", 443, false)]
#[case("example.org%2e", 443, false)]
#[case("", 443, false)]
#[case("a.cdn.example", 0, false)]
fn targets_are_told_apart(#[case] host: &str, #[case] port: u16, #[case] is_allowed: bool) {
    assert_eq!(rules(LIST).check_target(host, port).is_ok(), is_allowed);
}

#[test]
fn a_refusal_says_which_entry_would_allow_the_target() {
    let refused = |host, port| rules(LIST).check_target(host, port).unwrap_err().to_string();
    let other = refused("Other.example.", 443);
    assert!(other.contains("may add \"other.example:443\""), "{other}");
    let port = refused("example.org", 80);
    assert!(port.contains("\"example.org:443\" allows another port") && port.contains("\"example.org:80\""), "{port}");
    let address = refused("2001:db8::6", 443);
    assert!(address.contains("\"[2001:db8::6]:443\""), "{address}");
    let octal = refused("0177.1", 80);
    assert!(octal.contains("write 127.0.0.1"), "{octal}");
    let long = refused(&"\u{7}é".repeat(40_000), 80);
    assert!(long.len() < 1000 && !long.contains('\u{7}'), "{long}");
}

#[test]
fn private_addresses_behind_an_allowed_name_are_refused() {
    let list = rules(LIST);
    let target = list.check_target("example.org", 443).unwrap();
    list.check_addresses(&target, &addresses("1.1.1.1 2606:4700::1111")).unwrap();
    for private in "127.0.0.1 10.0.0.1 169.254.169.254 168.63.129.16 0.0.0.0 ::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 \
                    64:ff9b::7f00:1 fe80::1 fd00:ec2::254 2002:7f00:1::1 ff02::1"
        .split_whitespace()
    {
        let found = addresses(&format!("1.1.1.1 {private}"));
        let refusal = list.check_addresses(&target, &found).unwrap_err();
        assert!(matches!(refusal.cause, RefusalCause::NonPublicAddress { .. }), "{private}: {refusal}");
    }
}

#[test]
fn a_listed_address_may_stand_behind_an_allowed_name_on_its_port() {
    let list = rules(&["git.corp.example:22", "git.corp.example:443", "10.0.0.0/8:22"]);
    let check = |port, found: &str| {
        list.check_addresses(&list.check_target("git.corp.example", port).unwrap(), &addresses(found))
    };
    check(22, "10.1.2.3").unwrap();
    let refusal = check(443, "10.1.2.3").unwrap_err();
    assert!(refusal.to_string().contains("\"10.1.2.3:443\""), "{refusal}");
    check(22, "10.1.2.3 192.168.1.1").unwrap_err();
}

#[test]
fn localhost_is_the_loopback_interface_and_nothing_else() {
    let list = rules(&["localhost:5432"]);
    let target = list.check_target("localhost", 5432).unwrap();
    list.check_addresses(&target, &addresses("127.0.0.1 ::1 ::ffff:127.0.0.1")).unwrap();
    for elsewhere in ["1.1.1.1", "10.0.0.1", "169.254.169.254"] {
        list.check_addresses(&target, &addresses(elsewhere)).unwrap_err();
    }
    list.check_target("127.0.0.1", 5432).unwrap_err();
}

#[test]
fn a_network_with_public_addresses_opens_no_private_ones() {
    let list = rules(&["0.0.0.0/0:*", "[::/0]:*", "169.254.0.0/16:80"]);
    list.check_target("1.1.1.1", 1).unwrap();
    list.check_target("2606:4700::1111", 1).unwrap();
    list.check_target("169.254.169.254", 80).unwrap();
    for (host, port) in [("169.254.169.254", 443), ("127.0.0.1", 80), ("10.0.0.1", 80), ("::1", 80), ("fd00::1", 80)] {
        list.check_target(host, port).unwrap_err();
    }
}

#[rstest]
#[case("example.org", 443, true)]
#[case("example.org:443", 80, true)]
#[case("EXAMPLE.ORG.:443", 80, true)]
#[case("example.org", 80, false)]
#[case("example.org:80", 443, false)]
#[case("www.example.org", 443, false)]
#[case("user@example.org", 443, false)]
#[case("example.org:443:443", 443, false)]
#[case("example.org:", 443, false)]
#[case("", 443, false)]
fn a_host_header_names_the_target_or_not(#[case] authority: &str, #[case] default_port: u16, #[case] is_named: bool) {
    let target = rules(LIST).check_target("example.org", 443).unwrap();
    assert_eq!(target.is_named_by(authority, default_port), is_named);
}

#[test]
fn the_setting_is_a_word_or_a_list() {
    #[derive(Debug, serde::Deserialize)]
    struct Section {
        network: NetworkAccess,
    }
    let read = |text: &str| serde_json::from_str::<Section>(text).map(|section| section.network);
    assert_eq!(read(r#"{"network": "on"}"#).unwrap(), NetworkAccess::On);
    assert_eq!(read(r#"{"network": "off"}"#).unwrap(), NetworkAccess::Off);
    let list = read(r#"{"network": ["Example.org:443", "*.cdn.example:*"]}"#).unwrap();
    assert_eq!(list, NetworkAccess::List(rules(&["example.org:443", "*.cdn.example:*"])));
    assert_eq!(serde_json::to_string(&list).unwrap(), r#"["example.org:443","*.cdn.example:*"]"#);
    for (value, advice) in [
        (r#""of""#, "write \"on\", \"off\", or a list"),
        (r#""example.org:443""#, "write a list: [\"example.org:443\"]"),
        ("true", "write \"on\""),
        ("[]", "write \"off\" instead"),
        (r#"["a.example:1", "b.example"]"#, "\"b.example\" has no port"),
        ("7", "expected \"on\", \"off\", or a list"),
    ] {
        let error = read(&format!("{{\"network\": {value}}}")).unwrap_err().to_string();
        assert!(error.contains(advice), "{value}: {error}");
    }
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    let near =
        prop::sample::select(vec!["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00::1", "64:ff9b::a00:1"]);
    prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
        any::<u128>().prop_map(|bits| IpAddr::V6(bits.into())),
        any::<u32>().prop_map(|bits| IpAddr::V6(core::net::Ipv4Addr::from(bits).to_ipv6_mapped())),
        near.prop_map(|text| text.parse().unwrap()),
    ]
}

/// Hosts as a hostile client writes them: pieces of names, addresses and separators.
fn any_host() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "example",
        "org",
        ".",
        "..",
        "cdn",
        "127",
        "0x7f",
        "0177",
        "1",
        "0",
        ":",
        "[",
        "]",
        "%2e",
        "@",
        "*",
        "-",
        "xn--",
        "ü",
        "。",
        "\u{ad}",
        "ｅ",
        "\0",
        " ",
        "/",
        "localhost",
    ]);
    prop_oneof![prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat()), any::<String>()]
}

proptest! {
    #[test]
    fn no_rule_about_names_allows_an_address(address in any_address(), port: u16) {
        let list = rules(&["example.org:*", "*.cdn.example:*", "localhost:*", "*.org:*"]);
        prop_assert!(list.check_target(&address.to_string(), port).is_err());
        let bracketed = format!("[{address}]");
        prop_assert!(list.check_target(&bracketed, port).is_err());
    }

    #[test]
    fn an_allowed_name_reaches_public_addresses_alone(found in prop::collection::vec(any_address(), 1..4)) {
        let list = rules(&["example.org:443"]);
        let target = list.check_target("example.org", 443).unwrap();
        let all_public = found.iter().all(|address| is_public(*address));
        prop_assert_eq!(list.check_addresses(&target, &found).is_ok(), all_public);
    }

    #[test]
    fn every_spelling_of_an_address_gets_the_decision_of_its_normal_form(bits: u32, port in 1_u16..) {
        let address = core::net::Ipv4Addr::from(bits);
        prop_assume!(!address.is_unspecified() && !address.is_multicast() && !address.is_broadcast());
        let list = rules(&[&format!("{address}:{port}")]);
        let mapped = address.to_ipv6_mapped();
        for spelling in [address.to_string(), mapped.to_string(), format!("[{mapped}]")] {
            let target = list.check_target(&spelling, port).unwrap();
            prop_assert_eq!(target.host(), &TargetHost::Address(address.into()));
        }
        let [a, b, c, d] = address.octets();
        for odd in [format!("{bits}"), format!("{bits:#x}"), format!("0{a:o}.{b}.{c}.{d}"), format!("{a:#x}.{b}.{c}.{d}")] {
            prop_assert!(list.check_target(&odd, port).is_err(), "{}", odd);
        }
    }

    /// What is allowed is in normal form, and its normal form is allowed, too.
    #[test]
    fn the_host_of_an_allowed_target_is_in_normal_form(host in any_host(), port: u16) {
        let list = rules(&["example.org:*", "*.org:*", "*.cdn:*", "*.localhost:*", "1.1.1.1:*"]);
        if let Ok(target) = list.check_target(&host, port) {
            let text = target.host().to_string();
            prop_assert_eq!(&TargetHost::parse(&text).unwrap(), target.host());
            prop_assert_eq!(list.check_target(&text, port).unwrap(), target);
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()));
        }
    }

    #[test]
    fn an_entry_that_a_refusal_names_allows_the_target(host in any_host(), port: u16) {
        let list = rules(&["other.example:1"]);
        if let Err(NetworkRefusal { cause: RefusalCause::NotListed { entry, .. }, .. }) = list.check_target(&host, port)
            && let Ok(wider) = NetworkRules::parse(&[&entry])
        {
            prop_assert!(wider.check_target(&host, port).is_ok(), "{}", entry);
        }
    }

    #[test]
    fn entries_that_parse_have_a_stable_normal_form(host in any_host(), port in "[0-9*:]{0,6}") {
        if let Ok(rule) = format!("{host}:{port}").parse::<NetworkRule>() {
            prop_assert_eq!(rule.to_string().parse::<NetworkRule>().unwrap(), rule);
        }
    }
}
