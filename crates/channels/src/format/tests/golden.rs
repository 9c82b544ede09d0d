//! Golden output of sample replies in every markup. A zero-width space is written `⟨0⟩`.

use rstest::rstest;

use super::samples::{CHINESE, ENGLISH, KOREAN};
use crate::format::{LengthUnit, Markup, MessageFormat, format_draft, split_message};

/// All pieces in the network's markup, joined by line breaks.
fn format_all(text: &str, markup: Markup) -> String {
    let pieces = split_message(text, &MessageFormat { markup, max_length: 4000, length_unit: LengthUnit::Utf16 });
    let marked: Vec<String> = pieces.iter().map(|piece| piece.formatted.replace('\u{200b}', "⟨0⟩")).collect();
    marked.join("\n")
}

#[rstest]
#[case::plain(
    Markup::Plain,
    r##"Why the build fails
The linker cannot find libssl: your image has no libssl-dev. See the log (https://ci.example.org/run?id=4_2&full=1), or
ask @here.
1. Install it:
   apt-get install -y libssl-dev   # <- as root
2. Build again
   • with cargo build
   • or make just build
> A cached layer hides it & looks fine.
Image | Works?
slim | no
full | yes"##
)]
#[case::telegram_html(Markup::TelegramHtml, r##"<b>Why the build fails</b>
The linker cannot find <b>libssl</b>: your image has <i>no</i> <code>libssl-dev</code>. See <a href="https://ci.example.org/run?id=4_2&amp;full=1">the log</a>, or
ask @here.

1. Install it:

<pre><code class="language-sh">apt-get install -y libssl-dev   # &lt;- as root</code></pre>
2. Build again
   • with <code>cargo build</code>
   • or <s>make</s> <code>just build</code>

<blockquote>A cached layer hides it &amp; looks fine.</blockquote>

<pre>Image | Works?
------+-------
slim  | no
full  | yes</pre>"##)]
#[case::discord(Markup::Discord, r##"## Why the build fails
The linker cannot find **libssl**: your image has *no* `libssl-dev`. See [the log](https://ci.example.org/run?id=4_2&full=1), or
ask @⟨0⟩here.

1. Install it:

```sh
apt-get install -y libssl-dev   # <- as root
```
2. Build again
   - with `cargo build`
   - or ~~make~~ **`just build`**

> A cached layer hides it & looks fine.

```
Image | Works?
------+-------
slim  | no
full  | yes
```"##)]
#[case::slack(Markup::Slack, r##"*Why the build fails*
The linker cannot find *libssl*: your image has _no_ `libssl-dev`. See <https://ci.example.org/run?id=4_2&amp;full=1|the log>, or
ask @⟨0⟩here.

1. Install it:

```
apt-get install -y libssl-dev   # &lt;- as root
```
2. Build again
   • with `cargo build`
   • or ~make~ *`just build`*

> A cached layer hides it &amp; looks fine.

```
Image | Works?
------+-------
slim  | no
full  | yes
```"##)]
#[case::matrix_html(Markup::MatrixHtml, r##"<h2>Why the build fails</h2><p>The linker cannot find <strong>libssl</strong>: your image has <em>no</em> <code>libssl-dev</code>. See <a href="https://ci.example.org/run?id=4_2&amp;full=1">the log</a>, or<br>ask @here.</p><ol><li>Install it:<pre><code class="language-sh">apt-get install -y libssl-dev   # &lt;- as root</code></pre></li><li>Build again<ul><li>with <code>cargo build</code></li><li>or <del>make</del> <strong><code>just build</code></strong></li></ul></li></ol><blockquote><p>A cached layer hides it &amp; looks fine.</p></blockquote><table><tr><th>Image</th><th>Works?</th></tr><tr><td>slim</td><td>no</td></tr><tr><td>full</td><td><strong>yes</strong></td></tr></table>"##)]
fn an_english_answer(#[case] markup: Markup, #[case] expected: &str) {
    assert_eq!(format_all(ENGLISH, markup), expected);
}

#[rstest]
#[case::plain(
    Markup::Plain,
    r##"요약: 요청하신 작업을 "중지"했습니다.
• 원인(原因)은 timeout입니다. 자세한 내용은 문서 (https://example.org/문서)를 보세요.
• ☐ 다시 시도하기
• ☑ 로그 확인
<user>에게 알리세요 🙂"##
)]
#[case::telegram_html(
    Markup::TelegramHtml,
    r##"<b>요약</b>: 요청하신 작업을 <b>&quot;중지&quot;</b>했습니다.

• <b>원인(原因)</b>은 <code>timeout</code>입니다. 자세한 내용은 <a href="https://example.org/문서">문서</a>를 보세요.
• ☐ 다시 시도하기
• ☑ 로그 확인

&lt;user&gt;에게 알리세요 🙂"##
)]
#[case::discord(
    Markup::Discord,
    r##"**요약**: 요청하신 작업을 **"중지"**했습니다.

- **원인(原因)**은 `timeout`입니다. 자세한 내용은 [문서](https://example.org/문서)를 보세요.
- ☐ 다시 시도하기
- ☑ 로그 확인

<user>에게 알리세요 🙂"##
)]
#[case::slack(
    Markup::Slack,
    r##"*요약*: 요청하신 작업을 *"중지"*⟨0⟩했습니다.

• *원인(原因)*⟨0⟩은 `timeout`⟨0⟩입니다. 자세한 내용은 <https://example.org/문서|문서>를 보세요.
• ☐ 다시 시도하기
• ☑ 로그 확인

&lt;user&gt;에게 알리세요 🙂"##
)]
#[case::matrix_html(Markup::MatrixHtml, r##"<p><strong>요약</strong>: 요청하신 작업을 <strong>&quot;중지&quot;</strong>했습니다.</p><ul><li><strong>원인(原因)</strong>은 <code>timeout</code>입니다. 자세한 내용은 <a href="https://example.org/문서">문서</a>를 보세요.</li><li>☐ 다시 시도하기</li><li>☑ 로그 확인</li></ul><p>&lt;user&gt;에게 알리세요 🙂</p>"##)]
fn a_korean_answer(#[case] markup: Markup, #[case] expected: &str) {
    assert_eq!(format_all(KOREAN, markup), expected);
}

#[rstest]
#[case::plain(
    Markup::Plain,
    r##"结论
这是“重点”内容，还有《手册》的说明。请先停止任务，再运行：
print("你好，世界")
———
完成，见 https://example.org/zh。"##
)]
#[case::telegram_html(
    Markup::TelegramHtml,
    r##"<b>结论</b>
这是<b>“重点”</b>内容，还有<b>《手册》</b>的说明。请先停止任务，再运行：

<pre><code class="language-python">print(&quot;你好，世界&quot;)</code></pre>

———

<i>完成</i>，见 <a href="https://example.org/zh">https://example.org/zh</a>。"##
)]
#[case::discord(
    Markup::Discord,
    r##"### 结论
这是**“重点”**内容，还有**《手册》**的说明。请先停止任务，再运行：

```python
print("你好，世界")
```

———

*完成*，见 https://example.org/zh。"##
)]
#[case::slack(
    Markup::Slack,
    r##"*结论*
这是⟨0⟩*“重点”*⟨0⟩内容，还有⟨0⟩*《手册》*⟨0⟩的说明。请先停止任务，再运行：

```
print("你好，世界")
```

———

_完成_，见 <https://example.org/zh|https://example.org/zh>。"##
)]
#[case::matrix_html(Markup::MatrixHtml, r##"<h3>结论</h3><p>这是<strong>“重点”</strong>内容，还有<strong>《手册》</strong>的说明。请先停止任务，再运行：</p><pre><code class="language-python">print(&quot;你好，世界&quot;)</code></pre><hr><p><em>完成</em>，见 <a href="https://example.org/zh">https://example.org/zh</a>。</p>"##)]
fn a_chinese_answer(#[case] markup: Markup, #[case] expected: &str) {
    assert_eq!(format_all(CHINESE, markup), expected);
}

#[test]
fn the_plain_text_of_matrix_is_markdown_and_that_of_others_is_words() {
    let plain = |markup| {
        split_message(KOREAN, &MessageFormat { markup, max_length: 4000, length_unit: LengthUnit::Bytes })[0]
            .plain
            .clone()
    };
    let beginning = r#"**요약**: 요청하신 작업을 **"중지"**했습니다.

- **원인(原因)**은 `timeout`입니다. 자세한 내용은 [문서](https://example.org/문서)를 보세요."#;
    assert!(plain(Markup::MatrixHtml).starts_with(beginning), "{}", plain(Markup::MatrixHtml));
    assert!(plain(Markup::Slack).starts_with("요약: 요청하신 작업을 \"중지\"했습니다."), "{}", plain(Markup::Slack));
}

#[test]
fn markdown_that_fits_is_sent_as_it_is() {
    assert_eq!(format_all(ENGLISH, Markup::Markdown), ENGLISH.trim());
}

#[test]
fn a_split_block_of_code_is_closed_and_opened_again_and_a_list_goes_on_counting() {
    let code: String = (1..=8).map(|line| format!("print({line})  # some words\n")).collect();
    let text = format!("Run this:\n\n```python\n{code}```\n\n3. three\n4. four and a few more words\n5. five");
    let form = MessageFormat { markup: Markup::MatrixHtml, max_length: 220, length_unit: LengthUnit::Chars };
    let marked: Vec<String> = split_message(&text, &form).into_iter().map(|piece| piece.formatted).collect();
    assert_eq!(marked.len(), 2, "{marked:#?}");
    assert!(marked[0].ends_with("words</code></pre>"), "{marked:#?}");
    assert!(marked[1].starts_with("<pre><code class=\"language-python\">print("), "{marked:#?}");
    let form = MessageFormat { markup: Markup::MatrixHtml, max_length: 70, length_unit: LengthUnit::Chars };
    let last = split_message(&text, &form).pop().unwrap().formatted;
    assert_eq!(last, "<ol start=\"5\"><li>five</li></ol>");
}

#[test]
fn a_piece_ends_between_blocks_rather_than_in_them_and_not_after_a_heading() {
    let text = "One two three four five six seven eight nine ten.\n\n# Head\n\nEleven twelve. Thirteen fourteen fifteen sixteen.";
    let form = MessageFormat { markup: Markup::Discord, max_length: 70, length_unit: LengthUnit::Chars };
    let marked: Vec<String> = split_message(text, &form).into_iter().map(|piece| piece.formatted).collect();
    assert_eq!(
        marked,
        [
            "One two three four five six seven eight nine ten.",
            "# Head\nEleven twelve. Thirteen fourteen fifteen sixteen."
        ]
    );
}

#[test]
fn a_draft_shows_the_end_of_what_does_not_fit() {
    let text: String = (1..=100).map(|number| format!("Line {number} of **many**.\n\n")).collect();
    let form = MessageFormat { markup: Markup::TelegramHtml, max_length: 100, length_unit: LengthUnit::Utf16 };
    let draft = format_draft(&(text + "And **now"), &form);
    assert_eq!(
        draft.formatted,
        "…\nLine 98 of <b>many</b>.\n\nLine 99 of <b>many</b>.\n\nLine 100 of <b>many</b>.\n\nAnd <b>now</b>"
    );
    let code = format!("```rust\n{}", "let x = 1;\n".repeat(40));
    let draft = format_draft(&code, &form);
    assert!(draft.formatted.starts_with("…\n<pre><code class=\"language-rust\">let x"), "{draft:?}");
    assert!(draft.formatted.ends_with("let x = 1;</code></pre>"), "{draft:?}");
}

#[test]
fn markup_alone_is_shown_as_it_was_written_and_nothing_is_nothing() {
    let form = MessageFormat { markup: Markup::TelegramHtml, max_length: 4096, length_unit: LengthUnit::Utf16 };
    for text in ["```", "**", "# ", "- "] {
        assert_eq!(split_message(text, &form)[0].plain, text.trim());
    }
    assert_eq!(split_message(" \n\u{200b}\u{7}", &form), []);
    assert_eq!(format_draft("", &form).formatted, "");
}

#[test]
fn letters_outside_the_basic_plane_count_two_where_utf16_counts() {
    let text = "🙂".repeat(100);
    let counted = |measure| {
        split_message(&text, &MessageFormat { markup: Markup::Slack, max_length: 100, length_unit: measure }).len()
    };
    assert_eq!((counted(LengthUnit::Chars), counted(LengthUnit::Utf16), counted(LengthUnit::Bytes)), (1, 2, 4));
}

#[rstest]
#[case("@everyone @here me@here.org <@1> <@&2> <#3>")]
#[case("@**everyone** a@*here*")]
#[case("@<b></b>everyone &#64;here \\<@5>")]
fn mentions_in_replies_notify_no_one(#[case] text: &str) {
    let form = |markup| MessageFormat { markup, max_length: 4000, length_unit: LengthUnit::Utf16 };
    let discord = &split_message(text, &form(Markup::Discord))[0].formatted;
    let slack = &split_message(&text.replace("<@1>", "<!channel>"), &form(Markup::Slack))[0].formatted;
    for call in ["@everyone", "@here", "<@", "<#", "<!"] {
        assert!(!discord.contains(call), "{discord}");
        assert!(!slack.contains(call), "{slack}");
    }
}

#[rstest]
#[case::room_for_cells(18, "> ```\n> a | b\n> --+--\n> 1 | 2\n> ```")]
#[case::room_for_rows(19, "> a b\n> 1 2")]
#[case::room_for_the_table_alone(20, "> a b\n> 1 2")]
#[case::no_room(21, "> a b\n> 1 2")]
fn a_table_without_room_for_its_cells_becomes_text(#[case] depth: usize, #[case] expected: &str) {
    let quote = "> ".repeat(depth);
    assert_eq!(format_all(&format!("{quote}|a|b|\n{quote}|-|-|\n{quote}|1|2|"), Markup::Discord), expected);
}

#[rstest]
#[case::discord_everyone(Markup::Discord, "everyone")]
#[case::discord_here(Markup::Discord, "here")]
#[case::slack_channel(Markup::Slack, "channel")]
#[case::slack_everyone(Markup::Slack, "everyone")]
#[case::slack_here(Markup::Slack, "here")]
fn a_mention_at_the_end_of_a_long_word_notifies_no_one(#[case] markup: Markup, #[case] call: &str) {
    // The word is written in parts of 512 bytes: one of them ends at each place in the mention.
    for before in 490..=600 {
        let word = "x".repeat(before);
        assert_eq!(format_all(&format!("{word}@{call}"), markup), format!("{word}@⟨0⟩{call}"));
    }
}

#[test]
fn only_addresses_of_the_web_and_of_mail_are_links() {
    let text = "[a](javascript:alert(1)) [b](file:///etc/passwd) [c](mailto:c@example.org) [d](HTTPS://example.org/\"x) [e](./e.md)";
    assert_eq!(
        format_all(text, Markup::MatrixHtml),
        "<p>a (javascript:alert(1)) b (file:///etc/passwd) <a href=\"mailto:c@example.org\">c</a> \
         <a href=\"HTTPS://example.org/&quot;x\">d</a> e (./e.md)</p>"
    );
}
