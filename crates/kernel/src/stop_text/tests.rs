//! Tables of stop phrases and of texts that only contain one.

use rstest::rstest;

use super::{MAX_PHRASE_BYTES, STOP_PHRASES, is_stop_phrase};

/// Every stop phrase of the gateway from which users migrate.
const KNOWN: &str = "stop|esc|abort|exit|interrupt|stopp|halt|pare|deten|detén|detente|arrete|arrête|anhalten|aufhören|\
    hoer auf|停止|停下来|暂停|やめて|止めて|रुको|توقف|стоп|остановись|останови|остановить|прекрати|please stop|stop please|\
    stop openclaw|openclaw stop|stop action|stop current action|stop run|stop current run|stop agent|stop the agent|\
    stop don't do anything|stop dont do anything|stop do not do anything|stop doing anything|do not do that";

#[test]
fn every_known_stop_is_one_however_it_is_written() {
    for word in KNOWN.split('|').chain(["/stop"]) {
        let upper = word.to_uppercase();
        let spaced = format!(" \t{}\n", word.replace(' ', " \u{a0}  "));
        for text in [word, &upper, &spaced, &format!("{word}!!!"), &format!("{word}."), &format!("{word} 。」")] {
            assert!(is_stop_phrase(text), "{text:?}");
        }
        assert!(!is_stop_phrase(&format!("{word} x")), "{word:?} with more words");
        assert!(!is_stop_phrase(&format!("x {word}")), "{word:?} with more words");
        assert!(!is_stop_phrase(&format!("{word}{word}")), "{word:?} twice");
    }
}

#[rstest]
#[case::korean("멈춰")]
#[case::korean("그만!")]
#[case::korean("중지")]
#[case::italian("Fermati!")]
#[case::italian("basta")]
#[case::portuguese("Parar")]
#[case::portuguese("por favor pare")]
#[case::turkish("DURDUR")]
#[case::turkish("dur!")]
#[case::vietnamese("Dừng lại")]
#[case::indonesian("Berhenti.")]
#[case::indonesian("hentikan")]
#[case::chinese("停下")]
#[case::chinese("停")]
#[case::chinese("停！")]
#[case::chinese("停下来。")]
#[case::traditional("暫停")]
#[case::japanese("ストップ")]
#[case::arabic("توقف؟")]
#[case::hindi("रुको।")]
#[case::apostrophe("Stop don’t do anything")]
#[case::apostrophe("stop don`t do anything…")]
#[case::quoted_end("stop\"")]
#[case::bracket("stop)")]
#[case::dots("stop ...")]
#[case::full_width("stop！？")]
#[case::many(concat!("stop", "!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!"))]
#[case::command("/STOP")]
#[case::command("  /Stop \n")]
#[case::taken_apart("dete\u{301}n")]
#[case::taken_apart("arre\u{302}te")]
#[case::taken_apart("AUFHO\u{308}REN")]
#[case::taken_apart("du\u{31b}\u{300}ng la\u{323}i")]
#[case::taken_apart("\u{1106}\u{1165}\u{11b7}\u{110e}\u{116f}")]
#[case::taken_apart("스톱")]
#[case::taken_apart("ストッフ\u{309a}")]
fn a_stop(#[case] text: &str) {
    assert!(is_stop_phrase(text));
}

/// Each stop word with the politeness and the scripts of its language.
#[rstest]
#[case::korean(&["중지해 주세요", "중지해주세요", "중단해 줘", "그만해요!", "제발 멈춰 주세요", "그만 좀 해", "정지하십시오", "멈춰라", "stop 해줘"])]
#[case::chinese(&["请停止", "請停止", "请马上停下来", "停下來吧", "麻烦停一下", "快停下", "終止", "中斷", "停止啊。"])]
#[case::japanese(&["止めてください", "停止して下さい", "中止してください！", "お願いやめて"])]
#[case::alphabets(&["Please abort", "halt please", "bitte anhalten", "stop now", "fermati per favore", "пожалуйста остановись", "detente por favor"])]
#[case::commands(&["/중지", "/停止", "/終止"])]
fn polite_stops_are_stops(#[case] texts: &[&str]) {
    for text in texts {
        assert!(is_stop_phrase(text), "{text:?}");
    }
}

#[rstest]
#[case::politeness_alone(&["please", "请", "해 주세요", "ください", "please now"])]
#[case::an_object(&["请停止服务器", "중지 버튼을 눌러 주세요", "停止して見せて", "please stop the music", "파일 복사를 중지해 주세요"])]
#[case::other_commands(&["/exit", "/abort", "/halt please"])]
fn politeness_makes_no_stop(#[case] texts: &[&str]) {
    for text in texts {
        assert!(!is_stop_phrase(text), "{text:?}");
    }
}

#[rstest]
#[case::empty("")]
#[case::blank(" \n\t")]
#[case::only_marks("...!")]
#[case::wait("wait")]
#[case::wait("Wait!")]
#[case::wait("等等")]
#[case::wait("잠깐")]
#[case::wait("aspetta")]
#[case::inside("please stop the server on port 80")]
#[case::inside("stop words are hard")]
#[case::inside("can you stop?")]
#[case::inside("stop, then go on")]
#[case::inside("don't stop")]
#[case::inside("停止服务")]
#[case::inside("그만두는 법")]
#[case::inside("/stop all of it")]
#[case::inside("run /stop")]
#[case::inside("//stop")]
#[case::inside("stop\nthe music")]
#[case::joined("stopplease")]
#[case::joined("unstop")]
#[case::joined("stopped")]
#[case::leading_mark("!stop")]
#[case::leading_quote("\"stop\"")]
#[case::other_commands("/stopwatch")]
#[case::other_commands("/status")]
#[case::other_words("cancel my subscription")]
#[case::other_words("no")]
#[case::other_words("para")]
#[case::accent_of_another_letter("stóp")]
fn no_stop(#[case] text: &str) {
    assert!(!is_stop_phrase(text));
}

#[test]
fn a_huge_message_is_no_stop() {
    assert!(!is_stop_phrase(&"stop ".repeat(1_000_000)));
    assert!(!is_stop_phrase(&format!("{} stop", "x".repeat(10_000_000))));
}

#[test]
fn the_list_is_written_as_it_is_compared() {
    for (nth, stop) in STOP_PHRASES.iter().enumerate() {
        assert!(is_stop_phrase(stop), "{stop:?} does not match itself");
        assert!(stop.len() <= MAX_PHRASE_BYTES, "{stop:?} is too long");
        assert!(!STOP_PHRASES[..nth].contains(stop), "{stop:?} occurs twice");
    }
}
