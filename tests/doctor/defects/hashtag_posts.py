"""Write a post with hashtags."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("hashtag-posts", description="Posts with hashtags.")


class Row(BaseModel):
    """One topic, the hashtags that a post needs, and a post."""

    topic: str
    tags: list[str]
    post: Private[str]


TOPICS = {
    "a new bakery": ["#bread", "#bakery"], "a marathon": ["#run", "#marathon"], "a lost cat": ["#cat", "#lost"],
    "a book fair": ["#books", "#fair"], "a new bike lane": ["#bike", "#city"], "a film night": ["#film", "#night"],
}  # fmt: skip
app.tasks(
    "posts",
    row=Row,
    prompt=lambda row: f"Write one sentence about {row.topic}, with each of these hashtags once: {' '.join(row.tags)}",
    train=[
        Row(topic=topic, tags=tags, post=f"Come and see {topic}! {' '.join(tags)}") for topic, tags in TOPICS.items()
    ],
)


@app.rubric
def tags_used(answer_text: str, task: Row) -> float:
    """The share of the hashtags that are used."""
    return sum(answer_text.count(tag) for tag in task.tags) / len(task.tags)
