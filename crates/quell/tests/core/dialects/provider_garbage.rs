//! A provider that sends garbage: the run fails with a clear text, the daemon does not grow, and the next message of the
//! session is answered.

use quell_testkit::model::StreamStep;

use super::*;
use crate::resource_limits::{LimitsFixture, MB};

/// What a provider sends instead of an answer.
#[derive(Debug, Clone, Copy)]
enum Garbage {
    /// The connection ends within an event.
    CutFrame,
    /// A line of 100 MB.
    LongLine,
    /// JSON, of the wrong type.
    WrongType,
    NoJson,
    /// Text without an end.
    EndlessText,
    /// Comments without an end.
    EndlessComments,
    /// Events that say nothing, without an end.
    EndlessEvents,
    /// A call with 50 MB of arguments.
    LongArguments,
    Redirect,
    WebPage,
}

impl Garbage {
    fn response(self) -> ScriptedResponse {
        let stream = ScriptedStream::new();
        match self {
            Self::CutFrame => stream.text("Half").raw("data: {\"type\":\"resp", 1).step(StreamStep::Disconnect).into(),
            Self::LongLine => {
                let mut stream = stream.raw("data: {\"x\":\"", 1);
                stream = stream.raw("x".repeat(MB), 100);
                stream.raw("\"}\n\n", 1).into()
            }
            Self::WrongType => stream.raw("data: [\"an\", \"answer\"]\n\n", 1).into(),
            Self::NoJson => stream.raw("data: Internal error, please call Bob\n\n", 1).into(),
            // Long pieces, because the test need not measure how fast a debug build reads short ones.
            Self::EndlessText => {
                let text = "y".repeat(MB / 4);
                (0..100).fold(stream, |stream, _| stream.text(text.as_str())).step(StreamStep::Silent).into()
            }
            Self::EndlessEvents => {
                let padding = "z".repeat(MB);
                stream
                    .raw(format!("data: {{\"type\": \"keepalive\", \"padding\": \"{padding}\"}}\n\n"), usize::MAX)
                    .into()
            }
            Self::EndlessComments => stream.raw(": nothing\n\n".repeat(10_000), usize::MAX).into(),
            Self::LongArguments => {
                let arguments = json!({"path": "large", "content": "x".repeat(50 * MB)});
                stream.text("I write.").tool_call("c1", "write_file", &arguments).split_arguments(60_000).into()
            }
            Self::Redirect => ScriptedResponse::Status {
                code: 307,
                headers: vec![("location".to_owned(), "http://127.0.0.1:9/".to_owned())],
                body: "elsewhere".to_owned(),
            },
            Self::WebPage => ScriptedResponse::Status {
                code: 200,
                headers: vec![("content-type".to_owned(), "text/html".to_owned())],
                body: "<html>Sign in</html>".to_owned(),
            },
        }
    }

    /// How much the daemon may grow. Text is held until its limit of 16 MiB, in the answer, the turn, the journal and
    /// the events.
    fn most_megabytes(self) -> usize {
        match self {
            Self::EndlessText | Self::LongArguments => 300,
            _ => 100,
        }
    }

    /// A part of the error text for people.
    fn error_text(self) -> &'static str {
        match self {
            Self::CutFrame => "broke off",
            Self::LongLine => "longer than",
            Self::WrongType | Self::NoJson => "sent something unreadable",
            Self::EndlessText | Self::EndlessEvents | Self::LongArguments => "bytes",
            Self::EndlessComments => "too slow",
            Self::Redirect => "set base_url to where it points",
            Self::WebPage => "a web page",
        }
    }
}

#[rstest]
#[case::open_ai(OpenAi)]
#[ignore = "full: hundreds of megabytes each"]
#[case::open_ai_responses(OpenAiResponses)]
#[ignore = "full: hundreds of megabytes each"]
#[case::anthropic(Anthropic)]
#[ignore = "full: hundreds of megabytes each"]
#[case::gemini(Gemini)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_fails_the_run_clearly_and_costs_no_memory(
    #[case] dialect: ModelDialect,
    #[values(
        Garbage::CutFrame,
        Garbage::LongLine,
        Garbage::WrongType,
        Garbage::NoJson,
        Garbage::EndlessText,
        Garbage::EndlessComments,
        Garbage::EndlessEvents,
        Garbage::LongArguments,
        Garbage::Redirect,
        Garbage::WebPage
    )]
    garbage: Garbage,
) {
    let fixture = LimitsFixture::start_in(dialect, 3).await;
    let before = fixture.resident_bytes();
    fixture.model.script(garbage.response());
    fixture.assert_fails_alone(garbage.error_text()).await;
    fixture.assert_grown_less(before, garbage.most_megabytes(), &format!("{dialect:?} {garbage:?}"));
}

/// Two calls of one answer with the same id both run, and have two ids in the history.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_with_the_same_id_run_and_get_ids_of_their_own(
    #[values(OpenAi, OpenAiResponses, Anthropic, Gemini)] dialect: ModelDialect,
) {
    let test = start_engine().await;
    let twice = add_shell_call(ScriptedStream::new(), "same", "first");
    test.model.script(add_shell_call(twice, "same", "second"));
    run_completed(&test, dialect, "go").await;
    let seen = messages_as_text(&test.last_messages());
    assert!(seen.contains("first: 42") && seen.contains("second: 42"), "{seen}");
    test.close().await;
}
