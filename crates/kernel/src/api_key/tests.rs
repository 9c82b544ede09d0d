//! Tests of what a token may use, and of restrictions that cannot work.

use rstest::rstest;

use super::*;

fn list(entries: &[&str]) -> Option<Vec<String>> {
    Some(entries.iter().map(|entry| (*entry).to_owned()).collect())
}

fn key(agents: Option<Vec<String>>, models: Option<Vec<String>>) -> ApiKey {
    ApiKey::new(TokenRestrictions { agents, models, ..TokenRestrictions::default() })
}

fn agent(id: &str) -> AgentId {
    AgentId::parse(id).expect("an agent id")
}

#[test]
fn a_token_without_restrictions_may_use_all() {
    let key = ApiKey::default();
    assert!(StandardApi::ALL.into_iter().all(|api| key.may_use_api(api)) && key.may_use_own_api());
    assert!(key.may_use_agent(&agent("main")) && key.may_use_model("openai/gpt"));
    assert!(!key.is_daily_cost_reached(u64::MAX) && key.check_price("openai/gpt", None).is_ok());
}

#[test]
fn a_token_for_an_api_may_use_no_other() {
    let for_api = |api| ApiKey::new(TokenRestrictions { apis: Some(vec![api]), ..TokenRestrictions::default() });
    for own in StandardApi::ALL {
        for other in StandardApi::ALL {
            assert_eq!(for_api(own).check_api(other).is_ok(), own == other, "{own:?} at {other:?}");
        }
        assert_eq!(for_api(own).check_own_api().is_ok(), own == StandardApi::Acp, "{own:?}");
    }
    let refusal = for_api(StandardApi::Mcp).check_api(StandardApi::OpenAi).expect_err("another API");
    assert!(refusal.to_string().starts_with("this token is only for mcp, not for openai;"), "{refusal}");
}

#[rstest]
#[case::both_open(None, None, true, true)]
#[case::agents_alone_allow_no_model(list(&["main"]), None, true, false)]
#[case::models_alone_allow_no_agent(None, list(&["openai/gpt"]), false, true)]
#[case::both_listed(list(&["main"]), list(&["openai/gpt"]), true, true)]
#[case::others(list(&["other"]), list(&["openai/gpt-mini"]), false, false)]
#[case::all_of_a_provider(list(&["*"]), list(&["openai/*"]), true, true)]
#[case::all_of_another(list(&["*"]), list(&["open/*"]), true, false)]
#[case::everything(list(&["*"]), list(&["*"]), true, true)]
#[case::no_prefix(list(&["mai"]), list(&["openai/gp"]), false, false)]
fn a_list_allows_what_it_names(
    #[case] agents: Option<Vec<String>>,
    #[case] models: Option<Vec<String>>,
    #[case] runs_agent: bool,
    #[case] uses_model: bool,
) {
    let key = key(agents, models);
    assert_eq!((key.may_use_agent(&agent("main")), key.may_use_model("openai/gpt")), (runs_agent, uses_model));
    assert_eq!(key.check_agent(&agent("main")).is_ok(), runs_agent);
    assert_eq!(key.check_model("openai/gpt").is_ok(), uses_model);
}

#[test]
fn a_daily_cost_is_reached_at_its_number() {
    let key = ApiKey::new(TokenRestrictions { daily_cost: Some(0.02), ..TokenRestrictions::default() });
    assert!(!key.is_daily_cost_reached(19_999_999));
    assert!(key.is_daily_cost_reached(20_000_000));
    let price = Price { input: 0.0, output: 0.0 };
    assert_eq!(key.check_price("p/m", Some(price)), Ok(()), "free is a price");
    assert_eq!(key.check_price("p/m", None), Err(KeyRefusal::NoPrice("p/m".to_owned())));
}

#[rstest]
#[case::nothing(TokenRestrictions::default(), None)]
#[case::no_api(TokenRestrictions { apis: Some(vec![]), ..TokenRestrictions::default() }, Some("apis"))]
#[case::no_agent(TokenRestrictions { agents: list(&[]), ..TokenRestrictions::default() }, Some("agents"))]
#[case::all_agents(TokenRestrictions { agents: list(&["*"]), ..TokenRestrictions::default() }, None)]
#[case::bad_agent(TokenRestrictions { agents: list(&["a\u{1}"]), ..TokenRestrictions::default() }, Some("agents"))]
#[case::bare_model(TokenRestrictions { models: list(&["gpt"]), ..TokenRestrictions::default() }, Some("models"))]
#[case::inner_star(TokenRestrictions { models: list(&["a/*b"]), ..TokenRestrictions::default() }, Some("models"))]
#[case::no_provider(TokenRestrictions { models: list(&["/m"]), ..TokenRestrictions::default() }, Some("models"))]
#[case::nested(TokenRestrictions { models: list(&["router/a/b", "a/*", "*"]), ..TokenRestrictions::default() }, None)]
#[case::too_long(
    TokenRestrictions { models: Some(vec![format!("a/{}", "b".repeat(300))]), ..TokenRestrictions::default() },
    Some("models")
)]
#[case::free(TokenRestrictions { daily_cost: Some(0.0), ..TokenRestrictions::default() }, Some("dailyCost"))]
#[case::negative(TokenRestrictions { daily_cost: Some(-1.0), ..TokenRestrictions::default() }, Some("dailyCost"))]
#[case::infinite(TokenRestrictions { daily_cost: Some(f64::NAN), ..TokenRestrictions::default() }, Some("dailyCost"))]
#[case::limited(TokenRestrictions { daily_cost: Some(5.0), ..TokenRestrictions::default() }, None)]
fn a_restriction_that_cannot_work_is_named(
    #[case] restrictions: TokenRestrictions,
    #[case] field: Option<&'static str>,
) {
    assert_eq!(restriction_problem(&restrictions).map(|problem| problem.field), field);
}
