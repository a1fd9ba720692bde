//! Delay rules.

use crate::commands::configured;

#[test]
fn delay_rules_come_and_go() {
    let node = configured();
    let bad = [
        ("add --source * --dest * --rate 2 --interval 3 --latency 1", 255, "exactly one"),
        ("add --source foo --dest * --rate 2 --latency 1", 234, "foo"),
        ("add --source * --latency 1 --rate 1", 255, "both --source and --dest"),
        ("add --source * --dest * --rate 2", 255, "seconds other than zero"),
        ("add --source * --dest * --rate 2 --latency 0", 255, "seconds other than zero"),
        ("add --source * --dest * --rate 2 --latency 1 --portal 3 --message ACK", 255, "PUT or GET"),
        ("del --source * --dest 10.77.0.99@tcp", 234, "errno: -2"),
        ("del --all --source * --dest *", 255, "--all"),
    ];
    for (words, status, expected) in bad {
        node.bad(&format!("fault delay {words}"), status, &[expected]);
    }
    node.bad("fault delay add --source * --dest * --rate 1 --latency 1 --random", 2, &["--random"]);
    node.good("fault delay add --source *@tcp --dest 10.77.0.13@tcp --rate 2 --latency 3 --message put");
    let rule = "fault:
-     rule_type: delay
      fa_src: 255.255.255.255@tcp
      fa_dst: 10.77.0.13@tcp
      fa_ptl_mask: 0
      fa_msg_mask: 2
      la_rate: 2
      la_interval: 0
      la_latency: 3
";
    let counted = "      ls_delayed: 0
      fs_count: 0
      fs_put: 0
      fs_ack: 0
      fs_get: 0
      fs_reply: 0
";
    assert_eq!(node.good("fault delay show"), format!("{rule}{counted}"));
    assert_eq!(node.good("fault drop show"), "");
    node.good("fault drop add -s * -d * -i 3");
    // Both kinds are in one block, and stay as they are when it is imported again.
    let exported = node.good("export --backup");
    let (_, delays) = exported.split_once("-     rule_type: delay\n").unwrap();
    assert_eq!(format!("fault:\n-     rule_type: delay\n{delays}"), rule, "{exported}");
    assert_eq!(node.good_with("import --dry-run", &exported), "");
    node.good("fault delay del --all");
    let shown = node.good_with("import --dry-run", &exported);
    assert_eq!(shown, "+ delay rule: *@tcp -> 10.77.0.13@tcp\n");
    node.good_with("import", &exported);
    assert_eq!(node.good("fault delay reset"), "");
    assert_eq!(node.good("fault delay show"), format!("{rule}{counted}"));
    node.good_with("import --del", &format!("{rule}{counted}"));
    assert_eq!(node.good("fault delay show"), "");
    assert!(node.good("fault drop show").contains("rule_type: drop"));
}
