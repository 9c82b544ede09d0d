//! Sample replies in English, Korean and Chinese.

pub(super) const ENGLISH: &str = r#"## Why the build fails

The linker cannot find **libssl**: your image has *no* `libssl-dev`. See [the log](https://ci.example.org/run?id=4_2&full=1), or
ask @here.

1. Install it:
   ```sh
   apt-get install -y libssl-dev   # <- as root
   ```
2. Build again
   - with `cargo build`
   - or ~~make~~ **`just build`**

> A cached layer hides it & looks fine.

| Image | Works? |
|:--|--:|
| slim | no |
| full | **yes** |
"#;

pub(super) const KOREAN: &str = r#"**요약**: 요청하신 작업을 **"중지"**했습니다.

- **원인(原因)**은 `timeout`입니다. 자세한 내용은 [문서](https://example.org/문서)를 보세요.
- [ ] 다시 시도하기
- [x] 로그 확인

<user>에게 알리세요 🙂
"#;

pub(super) const CHINESE: &str = r#"### 结论

这是**“重点”**内容，还有**《手册》**的说明。请先停止任务，再运行：

```python
print("你好，世界")
```

---
*完成*，见 <https://example.org/zh>。
"#;
